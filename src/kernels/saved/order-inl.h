// In which order the lanes of two vectors hold the values of a row when they are packed. Included
// once per target.
//
// Floats lie in the order of memory. A bfloat16 number is the upper half of a float32: of a word
// with two of them one is a shift away and the other a mask, so that they are taken as even and odd
// ones, which costs less than half of what putting them side by side does. Draws are brought into
// the same order before they are spread, 32 words for 256 values, and codes go back into that of
// memory when their words are full.
#if defined(SLIMGRAD_KERNELS_SAVED_ORDER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_SAVED_ORDER_INL_H_
#undef SLIMGRAD_KERNELS_SAVED_ORDER_INL_H_
#else
#define SLIMGRAD_KERNELS_SAVED_ORDER_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include <slimgrad/half.h>

#include "formats/saved.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct InMemoryOrder {
  using F32 = hn::CappedTag<float, fewbit::kNumColumns>;
  using U32 = hn::RebindToUnsigned<F32>;

  static HWY_INLINE void arrange(hn::Vec<U32>&, hn::Vec<U32>&) {}

  static HWY_INLINE void load(const float* from, hn::Vec<F32>* x) {
    const F32 f32;
    for (std::size_t v = 0; v < fewbit::kNumColumns / hn::MaxLanes(f32); ++v)
      x[v] = hn::LoadU(f32, from + v * hn::MaxLanes(f32));
  }
  static HWY_INLINE void store(const hn::Vec<U32>* words, std::uint32_t* to) {
    const U32 u32;
    for (std::size_t v = 0; v < fewbit::kNumColumns / hn::MaxLanes(u32); ++v)
      hn::StoreU(words[v], u32, to + v * hn::MaxLanes(u32));
  }
};

// Two vectors at a time: together they are at most a row.
struct EvenThenOdd {
  using F32 = hn::CappedTag<float, fewbit::kNumColumns / 2>;
  using U32 = hn::RebindToUnsigned<F32>;
  using U16 = hn::Repartition<std::uint16_t, U32>;

  static HWY_INLINE void arrange(hn::Vec<U32>& first, hn::Vec<U32>& second) {
    const U32 u32;
    const auto even = hn::ConcatEven(u32, second, first);
    second = hn::ConcatOdd(u32, second, first);
    first = even;
  }

  static HWY_INLINE void load(const BFloat16Bits* from, hn::Vec<F32>* x) {
    const F32 f32;
    const U32 u32;
    constexpr std::size_t kLanes = hn::MaxLanes(f32);
    for (std::size_t v = 0; v < fewbit::kNumColumns / kLanes; v += 2) {
      const auto words = hn::BitCast(u32, hn::LoadU(U16(), &from[v * kLanes].bits));
      x[v] = hn::BitCast(f32, hn::ShiftLeft<16>(words));
      x[v + 1] = hn::BitCast(f32, hn::And(words, hn::Set(u32, 0xffff0000u)));
    }
  }
  static HWY_INLINE void store(const hn::Vec<U32>* words, std::uint32_t* to) {
    const U32 u32;
    constexpr std::size_t kLanes = hn::MaxLanes(u32);
    for (std::size_t v = 0; v < fewbit::kNumColumns / kLanes; v += 2)
      hn::StoreInterleaved2(words[v], words[v + 1], u32, to + v * kLanes);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
