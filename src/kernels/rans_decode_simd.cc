// The vector form of decoding in kernels/rans.h: four vectors of eight 32-bit states. Written for
// targets with 256-bit vectors (AVX2 and up); the others use the scalar specification, which a
// four-lane version does not beat.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rans_decode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/rans.h"
#include "kernels/rans_scalar.h"

#ifndef SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_
#define SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_
namespace slimgrad::rans {

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

}  // namespace slimgrad::rans
#endif  // SLIMGRAD_KERNELS_RANS_DECODE_SIMD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::rans::HWY_NAMESPACE {

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

HWY_INLINE __m128i look_up_four(const std::uint32_t* HWY_RESTRICT table, std::size_t i0,
                                std::size_t i1, std::size_t i2, std::size_t i3) {
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(table[i0]));
  return insert<3>(insert<2>(insert<1>(first, table, i1), table, i2), table, i3);
}

// The table's entries at eight indices, by eight loads of the kind above; a gather instruction has
// 39 micro-operations on the CPU that this was tuned on (Zen 3). The indices come from memory as
// four words of 64 bits: eight loads of 32 bits, or taking them out of a vector register, take
// longer.
// REQUIRES: three entries before and after those looked up can be read.
HWY_INLINE V32 look(const std::uint32_t* HWY_RESTRICT table, const std::uint32_t (&index)[8]) {
  std::uint64_t i[4];
  std::memcpy(i, index, sizeof(i));
  constexpr std::uint64_t kLow = 0xffffffff;
  return V32{
      _mm256_set_m128i(look_up_four(table, i[2] & kLow, i[2] >> 32, i[3] & kLow, i[3] >> 32),
                       look_up_four(table, i[0] & kLow, i[0] >> 32, i[1] & kLow, i[1] >> 32))};
}

// Gives the lanes that fell below the range their words. The sign of x - 2^15 says which, and both
// the mask and the blend look at signs only, so no comparison is needed.
HWY_INLINE V32 refill(V32 x, const std::uint8_t*& next) {
  const D32 d;
  const hn::FixedTag<std::uint8_t, 32> d8;
  const __m256 below = _mm256_castsi256_ps(hn::Sub(x, hn::Set(d, kRansLow)).raw);
  const auto set = static_cast<unsigned>(_mm256_movemask_ps(below));
  const auto shuffle = hn::Load(d8, kTake.index[set]);
  const V32 word = hn::BitCast(d, hn::TableLookupBytes(hn::LoadDup128(d8, next), shuffle));
  next += 2 * hwy::PopCount(set);
  const V32 full = hn::Or(hn::ShiftLeft<16>(x), word);
  return V32{_mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(x.raw), _mm256_castsi256_ps(full.raw), below))};
}

// One stream being decoded: its states, what is left of its words and of its output. The loops
// below work on local vectors: the compiler does not keep vectors inside a struct in registers.
struct Stream {
  States x;
  const std::uint8_t* next;
  const std::uint8_t* end;
  std::uint8_t* out;
  std::size_t left;

  HWY_INLINE V32 load(int v) const { return hn::LoadU(D32(), &x[8 * v]); }
  HWY_INLINE void store(V32 x0, V32 x1, V32 x2, V32 x3) {
    hn::StoreU(x0, D32(), &x[0]);
    hn::StoreU(x1, D32(), &x[8]);
    hn::StoreU(x2, D32(), &x[16]);
    hn::StoreU(x3, D32(), &x[24]);
  }
  // Where decoding of whole groups has come to.
  HWY_INLINE void advance(const std::uint8_t* to, std::size_t num_groups) {
    next = to;
    out += num_groups * kRansStates;
    left -= num_groups * kRansStates;
  }
};

// A group takes at most 64 bytes, and its last load reads 16 bytes from at most 48 on.
constexpr std::ptrdiff_t kGroupBytes = 64;
constexpr std::size_t kAhead = 512;  // bytes of output

// The slots of the four vectors of a stream.
using Indices = std::uint32_t[4][8];

HWY_INLINE void store_index(V32 x, std::uint32_t (&index)[8]) {
  hn::Store(hn::And(x, hn::Set(D32(), kRansTotal - 1)), D32(), index);
}

HWY_INLINE void pop(V32& x, V32 entry, const std::uint8_t*& next, std::uint32_t (&index)[8]) {
  const V32 field = hn::Set(D32(), 0xfff);
  const V32 frequency = hn::And(hn::ShiftRight<12>(entry), field);
  const V32 rest = hn::And(entry, field);
  x = refill(hn::Add(hn::Mul(frequency, hn::ShiftRight<kRansBits>(x)), rest), next);
  store_index(x, index);
}

// The highest byte of e_v becomes byte v of each word.
HWY_INLINE void store_symbols(V32 e0, V32 e1, V32 e2, V32 e3, std::uint8_t* out) {
  const __m256i even = _mm256_blend_epi16(e2.raw, _mm256_srli_epi32(e0.raw, 16), 0x55);
  const __m256i odd = _mm256_blend_epi16(e3.raw, _mm256_srli_epi32(e1.raw, 16), 0x55);
  const __m256i high = _mm256_and_si256(odd, _mm256_set1_epi16(static_cast<short>(0xff00)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_or_si256(_mm256_srli_epi16(even, 8), high));
}

HWY_INLINE void decode_one(const std::uint32_t* slots, Stream& s) {
  V32 x0 = s.load(0), x1 = s.load(1), x2 = s.load(2), x3 = s.load(3);
  alignas(32) Indices i;
  store_index(x0, i[0]), store_index(x1, i[1]), store_index(x2, i[2]), store_index(x3, i[3]);
  const std::uint8_t* next = s.next;
  const std::size_t most = s.left / kRansStates;
  std::size_t g = 0;
  for (; g < most && s.end - next >= kGroupBytes; ++g) {
    const V32 e0 = look(slots, i[0]), e1 = look(slots, i[1]);
    const V32 e2 = look(slots, i[2]), e3 = look(slots, i[3]);
    pop(x0, e0, next, i[0]);
    pop(x1, e1, next, i[1]);
    pop(x2, e2, next, i[2]);
    pop(x3, e3, next, i[3]);
    store_symbols(e0, e1, e2, e3, s.out + g * kRansStates);
  }
  s.store(x0, x1, x2, x3);
  s.advance(next, g);
}

// Two streams in counterstep: while one waits for its table entries, the other uses its own. A step
// of one stream is a chain of some fifty cycles, more than its four vectors can fill. They
// alternate vector by vector, because the CPU looks only half a step ahead; that alone is 20 %.
HWY_INLINE void decode_two(const std::uint32_t* slots, Stream& s, Stream& t) {
  V32 x0 = s.load(0), x1 = s.load(1), x2 = s.load(2), x3 = s.load(3);
  V32 y0 = t.load(0), y1 = t.load(1), y2 = t.load(2), y3 = t.load(3);
  alignas(32) Indices i, j;
  store_index(x0, i[0]), store_index(x1, i[1]), store_index(x2, i[2]), store_index(x3, i[3]);
  store_index(y0, j[0]), store_index(y1, j[1]), store_index(y2, j[2]), store_index(y3, j[3]);
  V32 f0 = look(slots, j[0]), f1 = look(slots, j[1]);
  V32 f2 = look(slots, j[2]), f3 = look(slots, j[3]);
  const std::uint8_t *s_next = s.next, *t_next = t.next;
  const std::uint8_t *const s_end = s.end, *const t_end = t.end;
  std::uint8_t *const s_out = s.out, *const t_out = t.out;
  const std::size_t most = std::min(s.left, t.left) / kRansStates;
  std::size_t g = 0;
  for (; g < most && s_end - s_next >= kGroupBytes && t_end - t_next >= kGroupBytes; ++g) {
    // The outputs are too far apart and too slow for the CPU to notice that they grow.
    hwy::Prefetch(s_out + g * kRansStates + kAhead);
    hwy::Prefetch(t_out + g * kRansStates + kAhead);
    const V32 e0 = look(slots, i[0]);
    pop(y0, f0, t_next, j[0]);
    const V32 e1 = look(slots, i[1]);
    pop(y1, f1, t_next, j[1]);
    const V32 e2 = look(slots, i[2]);
    pop(y2, f2, t_next, j[2]);
    const V32 e3 = look(slots, i[3]);
    pop(y3, f3, t_next, j[3]);
    store_symbols(f0, f1, f2, f3, t_out + g * kRansStates);
    f0 = look(slots, j[0]);
    pop(x0, e0, s_next, i[0]);
    f1 = look(slots, j[1]);
    pop(x1, e1, s_next, i[1]);
    f2 = look(slots, j[2]);
    pop(x2, e2, s_next, i[2]);
    f3 = look(slots, j[3]);
    pop(x3, e3, s_next, i[3]);
    store_symbols(e0, e1, e2, e3, s_out + g * kRansStates);
  }
  s.store(x0, x1, x2, x3);
  t.store(y0, y1, y2, y3);
  s.advance(s_next, g);
  t.advance(t_next, g);
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
  const DecodeStatus status = rans_decode_scalar(bytes, table, symbols);
  if (status != DecodeStatus::kOk) return status;
  return rans_decode_scalar(more_bytes, table, more_symbols);
}
#endif

}  // namespace slimgrad::rans::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad {
namespace rans {
HWY_EXPORT(decode);
HWY_EXPORT(decode_pair);
}  // namespace rans

DecodeStatus rans_decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                         std::span<std::uint8_t> symbols) noexcept {
  using namespace rans;
  return HWY_DYNAMIC_DISPATCH(decode)(bytes, table, symbols);
}

DecodeStatus rans_decode_pair(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> symbols,
                              std::span<const std::uint8_t> more_bytes,
                              std::span<std::uint8_t> more_symbols,
                              const RansDecodeTable& table) noexcept {
  using namespace rans;
  return HWY_DYNAMIC_DISPATCH(decode_pair)(bytes, symbols, more_bytes, more_symbols, table);
}

}  // namespace slimgrad
#endif  // HWY_ONCE
