// The vector form of kernels/rans.h: four vectors of eight 32-bit states. Written for targets with
// 256-bit vectors and gathers (AVX2 and up); the others use the scalar specification, which a
// four-lane version without gathers does not beat.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rans_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include "kernels/rans.h"
#include "kernels/rans_scalar.h"

#ifndef SLIMGRAD_KERNELS_RANS_SIMD_ONCE_
#define SLIMGRAD_KERNELS_RANS_SIMD_ONCE_
namespace slimgrad::rans {

// For each set of lanes that need a word: which of the next words each lane takes. The lanes of the
// set take them in order, the others any. 8 bytes a set, widened when used.
struct TakeTable {
  alignas(64) std::uint8_t index[256][8];
  constexpr TakeTable() : index() {
    for (int set = 0; set < 256; ++set)
      for (int lane = 0, taken = 0; lane < 8; ++lane)
        if (set >> lane & 1) index[set][lane] = static_cast<std::uint8_t>(taken++);
  }
};
inline constexpr TakeTable kTake;

// For each set of lanes that give a word: a byte shuffle that packs the words of the set, in order,
// at the top of 16 bytes.
struct GiveTable {
  alignas(64) std::uint8_t index[256][16];
  constexpr GiveTable() : index() {
    for (int set = 0; set < 256; ++set)
      for (int lane = 7, place = 7; lane >= 0; --lane)
        if (set >> lane & 1) {
          index[set][2 * place] = static_cast<std::uint8_t>(2 * lane);
          index[set][2 * place + 1] = static_cast<std::uint8_t>(2 * lane + 1);
          --place;
        }
  }
};
inline constexpr GiveTable kGive;

}  // namespace slimgrad::rans
#endif  // SLIMGRAD_KERNELS_RANS_SIMD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::rans::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::FixedTag<std::uint32_t, 8>;
using DI32 = hn::FixedTag<std::int32_t, 8>;
using DF32 = hn::FixedTag<float, 8>;
using D16 = hn::FixedTag<std::uint16_t, 8>;
using D8 = hn::FixedTag<std::uint8_t, 8>;
using D8x16 = hn::FixedTag<std::uint8_t, 16>;
using V32 = hn::Vec<D32>;

template <class Mask>
HWY_INLINE std::uint8_t bits_of(Mask mask) {
  std::uint8_t bits[8];  // Highway writes one byte and wants room for eight
  hn::StoreMaskBits(D32(), mask, bits);
  return bits[0];
}

// Signed comparison: both sides are below 2^31.
HWY_INLINE auto less(V32 a, V32 b) {
  const DI32 di;
  return hn::RebindMask(D32(), hn::Lt(hn::BitCast(di, a), hn::BitCast(di, b)));
}

HWY_INLINE V32 gather(const std::uint32_t* table, V32 index) {
  return hn::GatherIndex(D32(), table, hn::BitCast(DI32(), index));
}

// floor(x / f) 2^n + x mod f + start. The float quotient is off by less than 2^19 (2^-23 + 2^-24)
// < 1/8 (x < f 2^(31-n) and n >= 12, conversion, division and subtraction each round once), so after
// taking 1/8 away its integer part is the quotient or one less, and one comparison mends it. For
// n < 12 the quotient may be 2^23 and the argument fails: the caller takes the scalar way.
HWY_INLINE V32 push(V32 x, V32 frequency, V32 start, V32 total, int bits) {
  const D32 d;
  const DI32 di;
  const DF32 df;
  const auto estimate = hn::Sub(hn::Div(hn::ConvertTo(df, hn::BitCast(di, x)),
                                        hn::ConvertTo(df, hn::BitCast(di, frequency))),
                                hn::Set(df, 0.125f));
  const V32 quotient = hn::BitCast(d, hn::ConvertTo(di, estimate));
  const V32 rest = hn::Sub(x, hn::Mul(quotient, frequency));
  const V32 mend = hn::IfThenZeroElse(less(rest, frequency), hn::Sub(total, frequency));
  return hn::Add(hn::Add(hn::ShiftLeftSame(quotient, bits), hn::Add(rest, start)), mend);
}

// Encodes byte v of each of the eight 32-bit words of a group.
template <int v>
HWY_INLINE V32 encode_vector(V32 x, V32 group, const RansEncodeTable& table, V32 total, int bits,
                             std::uint8_t*& end) {
  const D32 d;
  const V32 symbol = v == 3 ? hn::ShiftRight<24>(group)
                            : hn::And(hn::ShiftRight<8 * v>(group), hn::Set(d, 0xff));
  const V32 packed = gather(table.packed.data(), symbol);
  const V32 frequency = hn::And(packed, hn::Set(d, 0xffff));
  const auto keeps = less(x, hn::ShiftLeftSame(frequency, 31 - bits));
  const std::uint8_t gives = static_cast<std::uint8_t>(~bits_of(keeps));
  const auto words = hn::BitCast(D8x16(), hn::TruncateTo(D16(), x));
  const auto shuffle = hn::Load(D8x16(), kGive.index[gives]);
  hn::StoreU(hn::TableLookupBytes(words, shuffle), D8x16(), end - 16);
  end -= 2 * hwy::PopCount(gives);
  x = hn::IfThenElse(keeps, x, hn::ShiftRight<16>(x));
  return push(x, frequency, hn::ShiftRight<16>(packed), total, bits);
}

std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols,
                                     const RansEncodeTable& table,
                                     std::span<std::uint8_t> scratch) {
  if (table.bits < 12) return rans_encode_scalar(symbols, table, scratch);
  const D32 d;
  alignas(64) States states;
  states.fill(kRansLow);
  std::uint8_t* end = scratch.data() + scratch.size();
  std::size_t size = symbols.size() / kRansStates * kRansStates;
  if (size < symbols.size()) encode_group(symbols.subspan(size), table, states, end);
  V32 x0 = hn::Load(d, &states[0]), x1 = hn::Load(d, &states[8]);
  V32 x2 = hn::Load(d, &states[16]), x3 = hn::Load(d, &states[24]);
  const int bits = table.bits;
  const V32 total = hn::Set(d, 1u << bits);
  const hn::FixedTag<std::uint8_t, 32> d8;
  for (; size > 0; size -= kRansStates) {
    const V32 group = hn::BitCast(d, hn::LoadU(d8, symbols.data() + size - kRansStates));
    x3 = encode_vector<3>(x3, group, table, total, bits, end);
    x2 = encode_vector<2>(x2, group, table, total, bits, end);
    x1 = encode_vector<1>(x1, group, table, total, bits, end);
    x0 = encode_vector<0>(x0, group, table, total, bits, end);
  }
  hn::Store(x0, d, &states[0]);
  hn::Store(x1, d, &states[8]);
  hn::Store(x2, d, &states[16]);
  hn::Store(x3, d, &states[24]);
  return store_states(states, end, scratch);
}

// Gives the lanes that fell below the range their words.
HWY_INLINE V32 refill(V32 x, const std::uint8_t*& next) {
  const D32 d;
  const auto takes = less(x, hn::Set(d, kRansLow));
  const std::uint8_t set = bits_of(takes);
  const V32 words = hn::PromoteTo(d, hn::BitCast(D16(), hn::LoadU(D8x16(), next)));
  const V32 index = hn::PromoteTo(d, hn::Load(D8(), kTake.index[set]));
  const V32 word = hn::TableLookupLanes(words, hn::IndicesFromVec(d, index));
  next += 2 * hwy::PopCount(set);
  return hn::IfThenElse(takes, hn::Or(hn::ShiftLeft<16>(x), word), x);
}

struct NarrowStep {
  const RansDecodeTable& table;
  // Advances x and returns its symbols in the top byte of each lane; what is below is not defined.
  HWY_INLINE V32 operator()(V32& x, const std::uint8_t*& next) const {
    const D32 d;
    const V32 slot = hn::And(x, hn::Set(d, (1u << table.bits) - 1));
    const V32 entry = gather(table.slots.data(), slot);
    const V32 frequency = hn::And(hn::ShiftRight<12>(entry), hn::Set(d, 0xfff));
    const V32 high = hn::ShiftRightSame(x, table.bits);
    x = refill(hn::Add(hn::Mul(frequency, high), hn::And(entry, hn::Set(d, 0xfff))), next);
    return entry;
  }
};

struct WideStep {
  const RansDecodeTable& table;
  HWY_INLINE V32 operator()(V32& x, const std::uint8_t*& next) const {
    const D32 d;
    const V32 slot = hn::And(x, hn::Set(d, (1u << table.bits) - 1));
    const auto* symbols = reinterpret_cast<const std::uint32_t*>(table.symbols.data());
    const V32 read = hn::GatherOffset(d, symbols, hn::BitCast(DI32(), slot));
    const V32 packed = gather(table.packed.data(), hn::And(read, hn::Set(d, 0xff)));
    const V32 frequency = hn::And(packed, hn::Set(d, 0xffff));
    const V32 high = hn::ShiftRightSame(x, table.bits);
    const V32 rest = hn::Sub(slot, hn::ShiftRight<16>(packed));
    x = refill(hn::Add(hn::Mul(frequency, high), rest), next);
    return hn::ShiftLeft<24>(read);
  }
};

template <class Step>
HWY_INLINE DecodeStatus decode_with(std::span<const std::uint8_t> bytes,
                                    const RansDecodeTable& table,
                                    std::span<std::uint8_t> symbols) {
  const D32 d;
  alignas(64) States states;
  const DecodeStatus status = load_states(bytes, states);
  if (status != DecodeStatus::kOk) return status;
  const Step step{table};
  const std::uint8_t* next = bytes.data() + kRansStateBytes;
  const std::uint8_t* const end = bytes.data() + bytes.size();
  V32 x0 = hn::Load(d, &states[0]), x1 = hn::Load(d, &states[8]);
  V32 x2 = hn::Load(d, &states[16]), x3 = hn::Load(d, &states[24]);
  const hn::FixedTag<std::uint8_t, 32> d8;
  std::size_t done = 0;
  // A group takes at most 64 bytes, and the last vector's load reads 16 bytes from at most 48 on.
  while (symbols.size() - done >= kRansStates && end - next >= 64) {
    const V32 e0 = step(x0, next);
    const V32 e1 = step(x1, next);
    const V32 e2 = step(x2, next);
    const V32 e3 = step(x3, next);
    const V32 low = hn::Or(hn::ShiftRight<24>(e0),
                           hn::And(hn::ShiftRight<16>(e1), hn::Set(d, 0xff00)));
    const V32 high = hn::Or(hn::And(hn::ShiftRight<8>(e2), hn::Set(d, 0xff0000)),
                            hn::And(e3, hn::Set(d, 0xff000000u)));
    hn::StoreU(hn::BitCast(d8, hn::Or(low, high)), d8, symbols.data() + done);
    done += kRansStates;
  }
  hn::Store(x0, d, &states[0]);
  hn::Store(x1, d, &states[8]);
  hn::Store(x2, d, &states[16]);
  hn::Store(x3, d, &states[24]);
  return decode_rest(table, states, next, end, symbols.subspan(done));
}

DecodeStatus decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                    std::span<std::uint8_t> symbols) {
  return table.narrow ? decode_with<NarrowStep>(bytes, table, symbols)
                      : decode_with<WideStep>(bytes, table, symbols);
}
#else
std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols,
                                     const RansEncodeTable& table,
                                     std::span<std::uint8_t> scratch) {
  return rans_encode_scalar(symbols, table, scratch);
}

DecodeStatus decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                    std::span<std::uint8_t> symbols) {
  return rans_decode_scalar(bytes, table, symbols);
}
#endif

}  // namespace slimgrad::rans::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad {
namespace rans {
HWY_EXPORT(encode);
HWY_EXPORT(decode);
}  // namespace rans

std::span<const std::uint8_t> rans_encode(std::span<const std::uint8_t> symbols,
                                          const RansEncodeTable& table,
                                          std::span<std::uint8_t> scratch) noexcept {
  using namespace rans;
  return HWY_DYNAMIC_DISPATCH(encode)(symbols, table, scratch);
}

DecodeStatus rans_decode(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                         std::span<std::uint8_t> symbols) noexcept {
  using namespace rans;
  return HWY_DYNAMIC_DISPATCH(decode)(bytes, table, symbols);
}

}  // namespace slimgrad
#endif  // HWY_ONCE
