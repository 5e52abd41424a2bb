#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/measure.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"
#include "kernels/half_float-inl.h"
#include "kernels/magnitude.h"
#include "kernels/measure/chunk_sums.h"
#include "kernels/measure/log2.h"
#include "kernels/measure/measure.h"

#ifndef SLIMGRAD_KERNELS_MEASURE_ONCE_
#define SLIMGRAD_KERNELS_MEASURE_ONCE_
namespace slimgrad::kernels::sums {

// The order of the work. Kernels::add_easy_block() adds a block, or returns false and adds nothing;
// add_rows() adds any values, row by row of one value a lane.
template <typename Kernels, typename T>
ChunkSums measure_values(const T* values, std::size_t num_values) {
  LaneSums all;
  std::size_t i = 0;
  for (; i + kBlockValues <= num_values; i += kBlockValues) {
    if (all.pivot == 0 || !Kernels::add_easy_block(values + i, all))
      Kernels::add_rows(values + i, kBlockRows, all);
    if (all.pivot == 0) all.pivot = pivot_of(all, i + kBlockValues);
  }
  const std::size_t num_rows = (num_values - i) / kLanes;
  Kernels::add_rows(values + i, num_rows, all);
  i += num_rows * kLanes;
  if (i < num_values) {
    T padded[kLanes] = {};
    std::copy(values + i, values + num_values, padded);
    Kernels::add_rows(padded, 1, all);
    all.num_zeros -= i + kLanes - num_values;
  }
  return joined(all);
}

// The specification.
struct PlainKernels {
  template <typename T>
  static bool add_easy_block(const T* values, LaneSums& all) {
    EasySums lanes[kLanes];
    for (std::size_t i = 0; i < kBlockValues; ++i)
      lanes[i % kLanes].add(magnitude_bits(values[i]), all.pivot);
    std::uint32_t largest = 0, smallest = kInfinityBits, num_zeros = 0;
    for (const EasySums& lane : lanes) {
      num_zeros += lane.num_zeros;
      largest = std::max(largest, lane.largest);
      smallest = std::min(smallest, lane.smallest);
    }
    if (!is_easy(largest, smallest)) return false;
    for (std::size_t k = 0; k < kLanes; ++k) all.add(k, lanes[k]);
    all.num_easy += kBlockValues - num_zeros;
    all.num_zeros += num_zeros;
    all.max_bits = std::max(all.max_bits, largest);
    return true;
  }

  template <typename T>
  static void add_rows(const T* values, std::size_t num_rows, LaneSums& all) {
    for (std::size_t i = 0; i < num_rows * kLanes; ++i) {
      const std::uint32_t bits = magnitude_bits(values[i]);
      if (bits >= kInfinityBits) {
        ++all.num_nonfinite;
      } else if (bits == 0) {
        ++all.num_zeros;
      } else {
        all.add(i % kLanes, bits);
        all.max_bits = std::max(all.max_bits, bits);
      }
    }
  }
};

}  // namespace slimgrad::kernels::sums
#endif  // SLIMGRAD_KERNELS_MEASURE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::sums {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
using VectorKernels = PlainKernels;
#else

namespace hn = hwy::HWY_NAMESPACE;
using slimgrad::kernels::HWY_NAMESPACE::load_magnitudes;

using F64 = hn::ScalableTag<double>;
using F32 = hn::CappedTag<float, kLanes>;
using I32 = hn::RebindToSigned<F32>;
using Doubles = hn::Vec<F64>;
using Floats = hn::Vec<F32>;
using Integers = hn::Vec<I32>;

// log2_bend() of log2.h.
HWY_INLINE Floats log2_bends(Integers bits) {
  const F32 f32;
  const I32 i32;
  const auto c = [&](int i) HWY_ATTR { return hn::Set(f32, kLog2Bend[i]); };
  const auto multiply_add = [](Floats x, Floats y, Floats z)
                                HWY_ATTR { return hn::Add(hn::Mul(x, y), z); };
  const Integers mantissa = hn::OrAnd(hn::Set(i32, 127 << 23), bits, hn::Set(i32, 0x007fffff));
  const Floats u = hn::Sub(hn::BitCast(f32, mantissa), hn::Set(f32, 1.5f));
  const Floats v = hn::Mul(u, u);
  const Floats even = multiply_add(multiply_add(c(4), v, c(2)), v, c(0));
  const Floats odd = multiply_add(multiply_add(c(5), v, c(3)), v, c(1));
  return hn::Mul(multiply_add(odd, u, even), hn::Sub(hn::Set(f32, 0.25f), v));
}

template <typename V>  // Floats or Integers
HWY_INLINE Doubles lower_half(V x) {
  return hn::PromoteTo(F64(), hn::LowerHalf(hn::Half<hn::DFromV<V> >(), x));
}

template <typename V>
HWY_INLINE Doubles upper_half(V x) {
  return hn::PromoteTo(F64(), hn::UpperHalf(hn::Half<hn::DFromV<V> >(), x));
}

// A vector's lanes of one of the sums.
HWY_INLINE void add_to(double* lanes, Doubles lower, Doubles upper) {
  const F64 f64;
  hn::Store(hn::Add(hn::Load(f64, lanes), lower), f64, lanes);
  lanes += hn::Lanes(f64);
  hn::Store(hn::Add(hn::Load(f64, lanes), upper), f64, lanes);
}

HWY_INLINE void add_to(double* lanes, Floats x) { add_to(lanes, lower_half(x), upper_half(x)); }

// Counts of the lanes of many vectors.
HWY_INLINE std::uint64_t count_lanes(Integers counts) {
  const I32 i32;
  HWY_ALIGN std::int32_t lanes[hn::MaxLanes(I32())];
  hn::Store(counts, i32, lanes);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < hn::Lanes(i32); ++i) count += static_cast<std::uint64_t>(lanes[i]);
  return count;
}

// One more where the mask is set.
HWY_INLINE Integers count(Integers counts, hn::Mask<I32> mask) {
  const I32 i32;
#if HWY_TARGET == HWY_AVX3  // one masked addition
  return hn::IfThenElse(mask, hn::Add(counts, hn::Set(i32, 1)), counts);
#else                       // A mask is a vector of 0 and -1.
  return hn::Sub(counts, hn::VecFromMask(i32, mask));
#endif
}

struct VectorKernels {
  static constexpr std::size_t kWidth = hn::MaxLanes(F32());

  template <typename T>
  static HWY_NOINLINE bool add_easy_block(const T* values, LaneSums& all) {
    const F32 f32;
    const I32 i32;
    const Integers pivot = hn::Set(i32, all.pivot);
    Integers num_nonzero = hn::Zero(i32), max_bits = hn::Zero(i32);
    Integers min_bits = hn::Set(i32, kInfinityBits);
    Floats log[kLanes / kWidth], log_square[kLanes / kWidth];
    Floats abs[kLanes / kWidth], square[kLanes / kWidth];
    for (std::size_t part = 0; part < kLanes / kWidth; ++part) {
      Floats sum_log = hn::Zero(f32), sum_log_square = hn::Zero(f32);
      Floats sum_abs = hn::Zero(f32), sum_square = hn::Zero(f32);
      const T* const lanes = values + part * kWidth;
      for (std::size_t row = 0; row < kBlockRows; ++row) {
        const Integers bits = load_magnitudes(F32(), lanes + row * kLanes);
        const auto is_nonzero = hn::Gt(bits, hn::Zero(i32));
        num_nonzero = count(num_nonzero, is_nonzero);
        min_bits = hn::IfThenElse(is_nonzero, hn::Min(min_bits, bits), min_bits);
        max_bits = hn::Max(max_bits, bits);
        const Floats distance = hn::ConvertTo(f32, hn::Sub(bits, pivot));
        const Floats logarithm = hn::IfThenElseZero(hn::RebindMask(f32, is_nonzero),
                                                    hn::Add(log2_bends(bits), distance));
        sum_log = hn::Add(sum_log, logarithm);
        sum_log_square = hn::Add(sum_log_square, hn::Mul(logarithm, logarithm));
        const Floats x = hn::BitCast(f32, bits);
        sum_abs = hn::Add(sum_abs, x);
        sum_square = hn::Add(sum_square, hn::Mul(x, x));
      }
      log[part] = sum_log;
      log_square[part] = sum_log_square;
      abs[part] = sum_abs;
      square[part] = sum_square;
    }
    const auto largest = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i32, max_bits)));
    const auto smallest = static_cast<std::uint32_t>(hn::GetLane(hn::MinOfLanes(i32, min_bits)));
    if (HWY_UNLIKELY(!is_easy(largest, smallest))) return false;
    for (std::size_t part = 0; part < kLanes / kWidth; ++part) {
      add_to(all.easy_log + part * kWidth, log[part]);
      add_to(all.easy_log_square + part * kWidth, log_square[part]);
      add_to(all.abs + part * kWidth, abs[part]);
      add_to(all.square + part * kWidth, square[part]);
    }
    const std::uint64_t num_easy = count_lanes(num_nonzero);
    all.num_easy += num_easy;
    all.num_zeros += kBlockValues - num_easy;
    all.max_bits = std::max(all.max_bits, largest);
    return true;
  }

  // All in double.
  template <typename T>
  static HWY_NOINLINE void add_rows(const T* values, std::size_t num_rows, LaneSums& all) {
    const F32 f32;
    const I32 i32;
    const Doubles unit = hn::Set(F64(), 0x1p-149);
    Integers max_bits = hn::Zero(i32), zeros = hn::Zero(i32), nonfinites = hn::Zero(i32);
    for (std::size_t part = 0; part < kLanes; part += kWidth) {
      for (std::size_t row = 0; row < num_rows; ++row) {
        Integers bits = load_magnitudes(F32(), values + row * kLanes + part);
        const auto is_nonfinite = hn::Gt(bits, hn::Set(i32, kInfinityBits - 1));
        nonfinites = count(nonfinites, is_nonfinite);
        bits = hn::IfThenZeroElse(is_nonfinite, bits);  // From here on Inf and NaN are zeros.
        const auto is_zero = hn::Eq(bits, hn::Zero(i32));
        zeros = count(zeros, is_zero);
        max_bits = hn::Max(max_bits, bits);

        // No flushing mode changes the integer that a subnormal is a multiple of.
        const auto is_small = hn::Lt(bits, hn::Set(i32, kSmallestNormalBits));
        const Floats multiple = hn::ConvertTo(f32, bits);
        const Integers normal = hn::IfThenElse(is_small, hn::BitCast(i32, multiple), bits);
        const Integers bias =
            hn::IfThenElse(is_small, hn::Set(i32, kLog2BiasOfSubnormals), hn::Set(i32, kLog2Bias));
        const Integers distance = hn::IfThenZeroElse(is_zero, hn::Sub(normal, bias));
        const Floats bend = hn::IfThenZeroElse(hn::RebindMask(f32, is_zero), log2_bends(normal));
        const Doubles log_low = hn::Add(lower_half(distance), lower_half(bend));
        const Doubles log_high = hn::Add(upper_half(distance), upper_half(bend));
        add_to(all.log + part, log_low, log_high);
        add_to(all.log_square + part, hn::Mul(log_low, log_low), hn::Mul(log_high, log_high));
        const auto is_small_float = hn::RebindMask(f32, is_small);
        const Floats large = hn::IfThenZeroElse(is_small_float, hn::BitCast(f32, bits));
        const Floats small = hn::IfThenElseZero(is_small_float, multiple);
        const Doubles low = hn::Add(lower_half(large), hn::Mul(lower_half(small), unit));
        const Doubles high = hn::Add(upper_half(large), hn::Mul(upper_half(small), unit));
        add_to(all.abs + part, low, high);
        add_to(all.square + part, hn::Mul(low, low), hn::Mul(high, high));
      }
    }
    const std::uint64_t num_nonfinite = count_lanes(nonfinites);
    all.num_nonfinite += num_nonfinite;
    all.num_zeros += count_lanes(zeros) - num_nonfinite;
    all.max_bits = std::max(all.max_bits,
                            static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i32, max_bits))));
  }
};
#endif  // HWY_TARGET == HWY_SCALAR

ChunkSums measure_float32(const float* values, std::size_t num_values) {
  return measure_values<VectorKernels>(values, num_values);
}
ChunkSums measure_bfloat16(const BFloat16Bits* values, std::size_t num_values) {
  return measure_values<VectorKernels>(values, num_values);
}
ChunkSums measure_float16(const Float16Bits* values, std::size_t num_values) {
  return measure_values<VectorKernels>(values, num_values);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels::sums
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace sums {
HWY_EXPORT(measure_float32);
HWY_EXPORT(measure_bfloat16);
HWY_EXPORT(measure_float16);

template <typename T>
ChunkSums measure_plainly(std::span<const T> values) {
  return measure_values<PlainKernels>(values.data(), values.size());
}
}  // namespace sums

ChunkSums measure_chunk_scalar(std::span<const float> values) noexcept {
  return sums::measure_plainly(values);
}
ChunkSums measure_chunk_scalar(std::span<const BFloat16Bits> values) noexcept {
  return sums::measure_plainly(values);
}
ChunkSums measure_chunk_scalar(std::span<const Float16Bits> values) noexcept {
  return sums::measure_plainly(values);
}

ChunkSums measure_chunk(std::span<const float> values) noexcept {
  using namespace sums;
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_float32)(values.data(), values.size());
}
ChunkSums measure_chunk(std::span<const BFloat16Bits> values) noexcept {
  using namespace sums;
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_bfloat16)(values.data(), values.size());
}
ChunkSums measure_chunk(std::span<const Float16Bits> values) noexcept {
  using namespace sums;
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_float16)(values.data(), values.size());
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
