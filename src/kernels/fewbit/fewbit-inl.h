// What packing and multiplying share on vectors: the width of a row, and tables in registers.
// Included once for every CPU target.
#if defined(SLIMGRAD_KERNELS_FEWBIT_FEWBIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_FEWBIT_FEWBIT_INL_H_
#undef SLIMGRAD_KERNELS_FEWBIT_FEWBIT_INL_H_
#else
#define SLIMGRAD_KERNELS_FEWBIT_FEWBIT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "formats/fewbit.h"
#include "kernels/half_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

// At most as wide as a row.
using F32 = hn::CappedTag<float, fewbit::kNumColumns>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Floats = hn::Vec<F32>;
using Codes = hn::Vec<U32>;

// kNumEntries floats to be looked up by a vector of indices: one shuffle if they fit into a vector,
// otherwise both halves and a choice by the highest bit of the index.
template <std::size_t kNumEntries>
class Table {
  static constexpr std::size_t kNumLanes = hn::MaxLanes(F32());
  static constexpr std::size_t kNumVectors = std::max<std::size_t>(1, kNumEntries / kNumLanes);

 public:
  HWY_INLINE explicit Table(const float* entries) {
    float padded[std::max(kNumEntries, kNumLanes)] = {};
    std::copy(entries, entries + kNumEntries, padded);
    for (std::size_t i = 0; i < kNumVectors; ++i)
      vectors_[i] = hn::LoadU(F32(), padded + i * kNumLanes);
  }

  // REQUIRES: index < kNumEntries in every lane.
  HWY_INLINE Floats at(Codes index) const { return find<kNumEntries, 0>(index); }

 private:
  template <std::size_t kCount, std::size_t kFirst>
  HWY_INLINE Floats find(Codes index) const {
    const U32 u32;
    if constexpr (kCount == 1) {
      return vectors_[kFirst];
    } else if constexpr (kCount <= kNumLanes) {
      return hn::TableLookupLanes(vectors_[kFirst], hn::IndicesFromVec(F32(), index));
    } else {
      constexpr std::size_t kHalf = kCount / 2;
      const Codes high_bit = hn::Set(u32, static_cast<std::uint32_t>(kHalf));
      const Codes rest = hn::AndNot(high_bit, index);
      const auto is_high = hn::RebindMask(F32(), hn::TestBit(index, high_bit));
      return hn::IfThenElse(is_high, find<kHalf, kFirst + kHalf / kNumLanes>(rest),
                            find<kHalf, kFirst>(rest));
    }
  }

  Floats vectors_[kNumVectors];
};

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
