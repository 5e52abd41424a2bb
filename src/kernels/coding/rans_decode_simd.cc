// The vector form of decoding in kernels/coding/rans.h: four vectors of eight 32-bit states.
// Written for targets with 256-bit vectors (AVX2 and up); the others use the scalar specification,
// which a four-lane version does not beat.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/rans_decode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/coding/rans.h"
#include "kernels/coding/rans_scalar.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_
#define SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_
namespace slimgrad::kernels::rans {

// For each set of lanes that need a word: a byte shuffle that hands the next words of the stream to
// the lanes of the set, in order. What the other lanes get does not matter.
struct TakeTable {
  alignas(64) std::uint8_t index[256][32];
  constexpr TakeTable() : index() {
    for (int set = 0; set < 256; ++set)
      for (int lane = 0, taken = 0; lane < 8; ++lane)
        for (int byte = 0; byte < 4; ++byte) {
          const bool takes = (set >> lane & 1) && byte < 2;
          index[set][4 * lane + byte] = static_cast<std::uint8_t>(takes ? 2 * taken + byte : 0x80);
          if (takes && byte == 1) ++taken;
        }
  }
};
inline constexpr TakeTable kTake;

inline DecodeStatus decode_pair_scalar(std::span<const std::uint8_t> bytes,
                                       std::span<std::uint8_t> symbols,
                                       std::span<const std::uint8_t> more_bytes,
                                       std::span<std::uint8_t> more_symbols,
                                       const RansDecodeTable& table) noexcept {
  const DecodeStatus status = rans_decode_scalar(bytes, table, symbols);
  if (status != DecodeStatus::kOk) return status;
  return rans_decode_scalar(more_bytes, table, more_symbols);
}

}  // namespace slimgrad::kernels::rans
#endif  // SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::rans::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::FixedTag<std::uint32_t, 8>;
using V32 = hn::Vec<D32>;

// Entry i of the table into lane k of `lanes`: a blend with 16 bytes that begin k entries earlier.
// One instruction with the load in it, where loading an entry and shuffling it into place are two.
template <int k>
HWY_INLINE __m128i insert(__m128i lanes, const std::uint32_t* HWY_RESTRICT table, std::size_t i) {
  const auto* const from = reinterpret_cast<const __m128i*>(table + i - k);
  return _mm_blend_epi32(lanes, _mm_loadu_si128(from), 1 << k);
}

// The entries at the four indices of 32 bits in i and j.
HWY_INLINE __m128i look_up_four(const std::uint32_t* HWY_RESTRICT table, std::uint64_t i,
                                std::uint64_t j) {
  constexpr std::uint64_t kLow = 0xffffffff;
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(table[i & kLow]));
  return insert<3>(insert<2>(insert<1>(first, table, i >> 32), table, j & kLow), table, j >> 32);
}

// The table's entries at eight indices, by eight loads of the kind above; a gather instruction has
// 39 micro-operations on the CPU that this was tuned on (Zen 3). Indices leave the vector two at a
// time: through memory they would be waited for longer.
// REQUIRES: three entries before and after those looked up can be read.
HWY_INLINE V32 look_up(const std::uint32_t* HWY_RESTRICT table, V32 index) {
  const __m128i low = _mm256_castsi256_si128(index.raw);
  const __m128i high = _mm256_extracti128_si256(index.raw, 1);
  const auto first = [](__m128i v) { return static_cast<std::uint64_t>(_mm_cvtsi128_si64(v)); };
  const auto second = [](__m128i v)
                          HWY_ATTR { return static_cast<std::uint64_t>(_mm_extract_epi64(v, 1)); };
  return V32{_mm256_set_m128i(look_up_four(table, first(high), second(high)),
                              look_up_four(table, first(low), second(low)))};
}

// Gives the lanes that fell below the range their words. The sign of x - 2^15 says which, and both
// the mask and the blend look at signs only, so no comparison is needed.
HWY_INLINE V32 refill(V32 x, const std::uint8_t*& next) {
  const D32 d;
  const hn::FixedTag<std::uint8_t, 32> d8;
  const __m256 below = _mm256_castsi256_ps(hn::Sub(x, hn::Set(d, kRansLow)).raw);
  const auto set = static_cast<std::size_t>(static_cast<unsigned>(_mm256_movemask_ps(below)));
  const auto shuffle = hn::Load(d8, kTake.index[set]);
  const V32 word = hn::BitCast(d, hn::TableLookupBytes(hn::LoadDup128(d8, next), shuffle));
  next += 2 * hwy::PopCount(std::uint64_t{set});
  const V32 full = hn::Or(hn::ShiftLeft<16>(x), word);
  return V32{_mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(x.raw), _mm256_castsi256_ps(full.raw), below))};
}

// The lowest 12 bits. As floats, like the blend before it: the compiler keeps the constant once.
HWY_INLINE V32 low_bits(V32 x) {
  static_assert(kRansTotal - 1 == 0xfff, "also the place of slot - start in an entry");
  const hn::RebindToFloat<D32> df;
  const auto mask = hn::BitCast(df, hn::Set(D32(), 0xfff));
  return hn::BitCast(D32(), hn::And(hn::BitCast(df, x), mask));
}

// A vector of states on its way: its slots in a register, as they are looked up next, and what is
// above them in memory, until the entries have come. There are not registers enough for both, and
// left to itself the compiler spills what is waited for; that costs 3 %.
struct Above {
  alignas(32) std::uint32_t lanes[8];

  HWY_INLINE void set(V32 x) {
    hn::Store(hn::ShiftRight<kRansBits>(x), D32(), lanes);
    asm volatile("" : "+m"(lanes));
  }
  HWY_INLINE V32 get() const { return hn::Load(D32(), lanes); }
};

// Takes a symbol from each state. Returns the slots of the next ones.
HWY_INLINE V32 pop(Above& above, V32 entry, const std::uint8_t*& next) {
  const V32 frequency = hn::ShiftRight<20>(entry);
  const V32 x = refill(hn::Add(hn::Mul(frequency, above.get()), low_bits(entry)), next);
  above.set(x);
  return low_bits(x);
}

// The symbols of a group as they come: that of entry e_v becomes byte v of each word. Taken from
// the entries early, which then need no register.
struct Symbols {
  __m256i even, odd;

  HWY_INLINE void take0(V32 entry) { even = _mm256_srli_epi32(entry.raw, 12); }
  HWY_INLINE void take1(V32 entry) { odd = _mm256_srli_epi32(entry.raw, 4); }
  HWY_INLINE void take2(V32 entry) {
    even = _mm256_blend_epi16(even, _mm256_slli_epi32(entry.raw, 4), 0xaa);
  }
  HWY_INLINE void take3(V32 entry) {
    odd = _mm256_blend_epi16(odd, _mm256_slli_epi32(entry.raw, 12), 0xaa);
  }
  HWY_INLINE void store(std::uint8_t* out) const {
    const __m256i from_odd = _mm256_set1_epi16(static_cast<short>(0xff00));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_blendv_epi8(even, odd, from_odd));
  }
};

// One stream being decoded: its states, what is left of its words and of its output.
struct Stream {
  States x;
  const std::uint8_t* next;
  const std::uint8_t* end;
  std::uint8_t* out;
  std::size_t left;

  // Splits a vector of states; returns the slots.
  HWY_INLINE V32 load(int v, Above& above) const {
    const V32 states = hn::LoadU(D32(), &x[8 * v]);
    above.set(states);
    return low_bits(states);
  }
  HWY_INLINE void store(int v, const Above& above, V32 slots) {
    hn::StoreU(hn::Or(hn::ShiftLeft<kRansBits>(above.get()), slots), D32(), &x[8 * v]);
  }
  // For how many groups there certainly are words: a group takes at most 64 bytes, and its last
  // load reads 16 bytes from at most 48 on.
  HWY_INLINE std::size_t safe_groups() const {
    return std::min(left / kRansStates, static_cast<std::size_t>(end - next) / 64);
  }
  HWY_INLINE void advance(std::size_t num_groups) {
    out += num_groups * kRansStates;
    left -= num_groups * kRansStates;
  }
};

// The loops below work on local vectors: the compiler does not keep vectors inside a struct in
// registers. They come to the end of a stream in steps, each of as many groups as are safe, some
// dozens if symbols have several bits; a check in every group would cost more.
HWY_INLINE void decode_one(const std::uint32_t* slots, Stream& s) {
  Above a[4];
  V32 x0 = s.load(0, a[0]), x1 = s.load(1, a[1]), x2 = s.load(2, a[2]), x3 = s.load(3, a[3]);
  const std::uint8_t* next = s.next;
  for (std::size_t num_groups; (num_groups = s.safe_groups()) > 0;) {
    for (std::size_t g = 0; g < num_groups; ++g) {
      const V32 e0 = look_up(slots, x0), e1 = look_up(slots, x1);
      const V32 e2 = look_up(slots, x2), e3 = look_up(slots, x3);
      x0 = pop(a[0], e0, next);
      x1 = pop(a[1], e1, next);
      x2 = pop(a[2], e2, next);
      x3 = pop(a[3], e3, next);
      Symbols symbols;
      symbols.take0(e0), symbols.take1(e1), symbols.take2(e2), symbols.take3(e3);
      symbols.store(s.out + g * kRansStates);
    }
    s.next = next;
    s.advance(num_groups);
  }
  s.store(0, a[0], x0), s.store(1, a[1], x1), s.store(2, a[2], x2), s.store(3, a[3], x3);
}

constexpr std::size_t kAhead = 512;  // bytes of output

// Two streams in counterstep: while one waits for its table entries, the other uses its own. A step
// of one stream is a chain of some fifty cycles, more than its four vectors can fill. They
// alternate vector by vector, because the CPU looks only half a step ahead; that alone is 20 %.
HWY_INLINE void decode_two(const std::uint32_t* slots, Stream& s, Stream& t) {
  Above a[4], b[4];
  V32 x0 = s.load(0, a[0]), x1 = s.load(1, a[1]), x2 = s.load(2, a[2]), x3 = s.load(3, a[3]);
  V32 y0 = t.load(0, b[0]), y1 = t.load(1, b[1]), y2 = t.load(2, b[2]), y3 = t.load(3, b[3]);
  V32 f0 = look_up(slots, y0), f1 = look_up(slots, y1);
  V32 f2 = look_up(slots, y2), f3 = look_up(slots, y3);
  const std::uint8_t *s_next = s.next, *t_next = t.next;
  for (std::size_t num_groups; (num_groups = std::min(s.safe_groups(), t.safe_groups())) > 0;) {
    std::uint8_t *s_out = s.out, *t_out = t.out;
    const std::uint8_t* const s_stop = s_out + num_groups * kRansStates;
    for (; s_out != s_stop; s_out += kRansStates, t_out += kRansStates) {
      // The outputs are too far apart and too slow for the CPU to notice that they grow.
      hwy::Prefetch(s_out + kAhead);
      hwy::Prefetch(t_out + kAhead);
      Symbols symbols;
      const V32 e0 = look_up(slots, x0);
      y0 = pop(b[0], f0, t_next);
      symbols.take0(f0);
      const V32 e1 = look_up(slots, x1);
      y1 = pop(b[1], f1, t_next);
      symbols.take1(f1);
      const V32 e2 = look_up(slots, x2);
      y2 = pop(b[2], f2, t_next);
      symbols.take2(f2);
      const V32 e3 = look_up(slots, x3);
      y3 = pop(b[3], f3, t_next);
      symbols.take3(f3);
      symbols.store(t_out);
      f0 = look_up(slots, y0);
      x0 = pop(a[0], e0, s_next);
      symbols.take0(e0);
      f1 = look_up(slots, y1);
      x1 = pop(a[1], e1, s_next);
      symbols.take1(e1);
      f2 = look_up(slots, y2);
      x2 = pop(a[2], e2, s_next);
      symbols.take2(e2);
      f3 = look_up(slots, y3);
      x3 = pop(a[3], e3, s_next);
      symbols.take3(e3);
      symbols.store(s_out);
    }
    s.next = s_next, t.next = t_next;
    s.advance(num_groups);
    t.advance(num_groups);
  }
  s.store(0, a[0], x0), s.store(1, a[1], x1), s.store(2, a[2], x2), s.store(3, a[3], x3);
  t.store(0, b[0], y0), t.store(1, b[1], y1), t.store(2, b[2], y2), t.store(3, b[3], y3);
}

HWY_INLINE DecodeStatus open(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                             Stream& stream) {
  const DecodeStatus status = load_states(bytes, stream.x);
  if (status != DecodeStatus::kOk) return status;
  stream.next = bytes.data() + kRansStateBytes;
  stream.end = bytes.data() + bytes.size();
  stream.out = symbols.data();
  stream.left = symbols.size();
  return status;
}

HWY_INLINE DecodeStatus close(Stream& stream, const RansDecodeTable& table) {
  return decode_rest(table, stream.x, stream.next, stream.end, {stream.out, stream.left});
}

DecodeStatus decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                    std::span<std::uint8_t> symbols) {
  Stream stream;
  const DecodeStatus status = open(bytes, symbols, stream);
  if (status != DecodeStatus::kOk) return status;
  decode_one(table.slots(), stream);
  return close(stream, table);
}

DecodeStatus decode_pair(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                         std::span<const std::uint8_t> more_bytes,
                         std::span<std::uint8_t> more_symbols, const RansDecodeTable& table) {
  Stream first, second;
  DecodeStatus status = open(bytes, symbols, first);
  if (status != DecodeStatus::kOk) return status;
  status = open(more_bytes, more_symbols, second);
  if (status != DecodeStatus::kOk) return status;
  decode_two(table.slots(), first, second);
  decode_one(table.slots(), first);
  decode_one(table.slots(), second);
  status = close(first, table);
  return status == DecodeStatus::kOk ? close(second, table) : status;
}
#else
DecodeStatus decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                    std::span<std::uint8_t> symbols) {
  return rans_decode_scalar(bytes, table, symbols);
}

DecodeStatus decode_pair(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                         std::span<const std::uint8_t> more_bytes,
                         std::span<std::uint8_t> more_symbols, const RansDecodeTable& table) {
  return decode_pair_scalar(bytes, symbols, more_bytes, more_symbols, table);
}
#endif

}  // namespace slimgrad::kernels::rans::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace rans {
HWY_EXPORT(decode);
HWY_EXPORT(decode_pair);
}  // namespace rans

DecodeStatus rans_decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                         std::span<std::uint8_t> symbols) noexcept {
  using namespace rans;
  if (use_scalar()) return rans_decode_scalar(bytes, table, symbols);
  return HWY_DYNAMIC_DISPATCH(decode)(bytes, table, symbols);
}

DecodeStatus rans_decode_pair(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                              std::span<const std::uint8_t> more_bytes,
                              std::span<std::uint8_t> more_symbols,
                              const RansDecodeTable& table) noexcept {
  using namespace rans;
  if (use_scalar()) return decode_pair_scalar(bytes, symbols, more_bytes, more_symbols, table);
  return HWY_DYNAMIC_DISPATCH(decode_pair)(bytes, symbols, more_bytes, more_symbols, table);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
