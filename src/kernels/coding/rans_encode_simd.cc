// The vector form of encoding in kernels/coding/rans.h: four vectors of eight 32-bit states.
// Written for targets with 256-bit vectors (AVX2 and up); the others use the scalar specification.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/rans_encode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include "kernels/coding/rans.h"
#include "kernels/coding/rans_scalar.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_RANS_ENCODE_SIMD_ONCE_
#define SLIMGRAD_KERNELS_RANS_ENCODE_SIMD_ONCE_
namespace slimgrad::kernels::rans {

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

}  // namespace slimgrad::kernels::rans
#endif  // SLIMGRAD_KERNELS_RANS_ENCODE_SIMD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::rans::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::FixedTag<std::uint32_t, 8>;
using D16 = hn::FixedTag<std::uint16_t, 8>;
using D8x16 = hn::FixedTag<std::uint8_t, 16>;
using V32 = hn::Vec<D32>;

// The upper halves of the 64-bit lanes of a and b: of a's first two and b's, and of their others.
HWY_INLINE __m256i upper_halves(__m256i a, __m256i b) {
  return _mm256_castps_si256(
      _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}

// The entries of eight symbols, as the products below want them: of lanes 0, 1, 4, 5 and of the
// others.
struct Entries {
  __m256i outer, inner;
};

// The entries of the symbols of byte v of the eight 32-bit words of a group. Broadcasts and blends,
// because shuffles, of which there are enough below, have fewer units to run on.
template <int v>
HWY_INLINE Entries look_up(const RansEncodeEntry* entries, const std::uint8_t* group) {
  const auto entry = [&](int word) HWY_ATTR {
    std::int64_t bits;
    std::memcpy(&bits, entries + group[4 * word + v], sizeof(bits));
    return _mm256_set1_epi64x(bits);
  };
  const auto four = [&](int i) HWY_ATTR {
    return _mm256_blend_epi32(_mm256_blend_epi32(entry(i), entry(i + 1), 0x0c),
                              _mm256_blend_epi32(entry(i + 4), entry(i + 5), 0xc0), 0xf0);
  };
  return {four(0), four(2)};
}

// Encodes a symbol in each of eight states.
HWY_INLINE __m256i encode_vector(__m256i x, Entries entries, std::uint8_t*& end) {
  using Entry = RansEncodeEntry;
  const auto [outer, inner] = entries;
  const __m256i fields = upper_halves(outer, inner);
  const __m256 gives =  // by their signs
      _mm256_castsi256_ps(_mm256_add_epi32(x, _mm256_slli_epi32(fields, Entry::kToLimit)));
  const auto set = static_cast<unsigned>(_mm256_movemask_ps(gives));
  const auto words = hn::BitCast(D8x16(), hn::TruncateTo(D16(), V32{x}));
  const auto shuffle = hn::Load(D8x16(), kGive.index[set]);
  hn::StoreU(hn::TableLookupBytes(words, shuffle), D8x16(), end - 16);
  end -= 2 * static_cast<std::size_t>(std::popcount(set));
  x = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(x),
                                           _mm256_castsi256_ps(_mm256_srli_epi32(x, 16)), gives));

  const __m256i outer_product = _mm256_mul_epu32(_mm256_unpacklo_epi32(x, x), outer);
  const __m256i inner_product = _mm256_mul_epu32(_mm256_unpackhi_epi32(x, x), inner);
  const __m256i quotient = _mm256_srlv_epi32(upper_halves(outer_product, inner_product),
                                             _mm256_srli_epi32(fields, Entry::kShiftAt));
  const __m256i others = _mm256_and_si256(fields, _mm256_set1_epi32(Entry::kOthers));
  const __m256i bias =
      _mm256_and_si256(_mm256_srli_epi32(fields, Entry::kBiasAt), _mm256_set1_epi32(Entry::kBias));
  return _mm256_add_epi32(_mm256_add_epi32(x, bias), _mm256_mullo_epi32(quotient, others));
}

// All symbols of whole groups, the last group first. Each vector's entries are looked up before the
// vector in front of it is worked on: that far the CPU does not look ahead by itself. Not inline:
// in the function below GCC would keep the states in memory.
// REQUIRES: at least one group, and nothing but whole ones.
HWY_NOINLINE void encode_groups(std::span<const std::uint8_t> symbols, const RansEncodeTable& table,
                                States& states, std::uint8_t*& to) {
  const RansEncodeEntry* const entries = table.entry.data();
  std::uint8_t* end = to;
  auto* const x = reinterpret_cast<__m256i*>(states.data());
  __m256i x0 = _mm256_loadu_si256(x), x1 = _mm256_loadu_si256(x + 1);
  __m256i x2 = _mm256_loadu_si256(x + 2), x3 = _mm256_loadu_si256(x + 3);
  const std::uint8_t* group = symbols.data() + symbols.size() - kRansStates;
  Entries e3 = look_up<3>(entries, group), e0;
  for (;; group -= kRansStates) {
    const Entries e2 = look_up<2>(entries, group);
    x3 = encode_vector(x3, e3, end);
    const Entries e1 = look_up<1>(entries, group);
    x2 = encode_vector(x2, e2, end);
    e0 = look_up<0>(entries, group);
    x1 = encode_vector(x1, e1, end);
    if (group == symbols.data()) break;
    e3 = look_up<3>(entries, group - kRansStates);
    x0 = encode_vector(x0, e0, end);
  }
  x0 = encode_vector(x0, e0, end);
  _mm256_storeu_si256(x, x0);
  _mm256_storeu_si256(x + 1, x1);
  _mm256_storeu_si256(x + 2, x2);
  _mm256_storeu_si256(x + 3, x3);
  to = end;
}

std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols,
                                     const RansEncodeTable& table,
                                     std::span<std::uint8_t> scratch) {
  States states;
  states.fill(kRansLow);
  std::uint8_t* end = scratch.data() + scratch.size();
  const std::size_t size = symbols.size() / kRansStates * kRansStates;
  if (size < symbols.size()) encode_group(symbols.subspan(size), table, states, end);
  if (size > 0) encode_groups(symbols.first(size), table, states, end);
  return store_states(states, end, scratch);
}
#else
std::span<const std::uint8_t> encode(std::span<const std::uint8_t> symbols,
                                     const RansEncodeTable& table,
                                     std::span<std::uint8_t> scratch) {
  return rans_encode_scalar(symbols, table, scratch);
}
#endif

}  // namespace slimgrad::kernels::rans::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace rans {
HWY_EXPORT(encode);
}  // namespace rans

std::span<const std::uint8_t> rans_encode(std::span<const std::uint8_t> symbols,
                                          const RansEncodeTable& table,
                                          std::span<std::uint8_t> scratch) noexcept {
  using namespace rans;
  if (use_scalar()) return rans_encode_scalar(symbols, table, scratch);
  return HWY_DYNAMIC_DISPATCH(encode)(symbols, table, scratch);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
