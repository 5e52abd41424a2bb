#include "kernels/measure/measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/dispatch.h"
#include "kernels/magnitude.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/measure.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<std::uint16_t, U32>;
using Doubles = hn::Vec<F64>;
using Floats = hn::Vec<F32>;
using Words = hn::Vec<U32>;
using Integers = hn::Vec<I32>;

// Vectors of magnitude_bits(), type by type.
HWY_INLINE Words load_magnitudes(const float* from) {
  const U32 u32;
  return hn::And(hn::BitCast(u32, hn::LoadU(F32(), from)), hn::Set(u32, ~kSignMask));
}

HWY_INLINE Words load_magnitudes(const BFloat16Bits* from) {
  const U32 u32;
  const auto half = hn::LoadU(U16(), &from->bits);
  return hn::And(hn::ShiftLeft<16>(hn::PromoteTo(u32, half)), hn::Set(u32, ~kSignMask));
}

HWY_INLINE Words load_magnitudes(const Float16Bits* from) {
  const F32 f32;
  const U32 u32;
  const I32 i32;
  const auto half = hn::And(hn::LoadU(U16(), &from->bits), hn::Set(U16(), 0x7fff));
  const Integers magnitude = hn::BitCast(i32, hn::PromoteTo(u32, half));
  const Integers rebias = hn::Set(i32, 112 << 23);
  const Integers normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  const auto is_nonfinite = hn::Gt(magnitude, hn::Set(i32, 0x7bff));
  const Integers large = hn::Add(normal, hn::IfThenElseZero(is_nonfinite, rebias));
  const Floats subnormal = hn::Mul(hn::ConvertTo(f32, magnitude), hn::Set(f32, 0x1p-24f));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(i32, 0x0400));
  return hn::BitCast(u32, hn::IfThenElse(is_subnormal, hn::BitCast(i32, subnormal), large));
}

// log2 of a normal positive float: its exponent plus a polynomial in the fraction f in [0, 1) of
// its mantissa 1 + f. The polynomial approximates log2(1 + f) with the least maximal error among
// those of degree 7 that are right at both ends, f + f (1 - f) R(f): 3.3e-7, and 4.5e-7 with its
// coefficients and steps rounded to float32. (R by linear programming on 3001 Chebyshev points.)
HWY_INLINE Floats log2_of_normal(Integers bits, Floats bias) {
  const F32 f32;
  const I32 i32;
  const Floats exponent = hn::Sub(hn::ConvertTo(f32, hn::ShiftRight<23>(bits)), bias);
  const Integers mantissa =
      hn::Or(hn::And(bits, hn::Set(i32, 0x007fffff)), hn::Set(i32, 127 << 23));
  const Floats f = hn::Sub(hn::BitCast(f32, mantissa), hn::Set(f32, 1.0f));
  // By Estrin's scheme: Horner's would make one chain of eight dependent steps, too long for the
  // CPU to overlap enough iterations.
  const Floats f2 = hn::Mul(f, f);
  const Floats f4 = hn::Mul(f2, f2);
  const Floats p12 = hn::MulAdd(hn::Set(f32, -0x1.70ec7cp-1f), f, hn::Set(f32, 0x1.715296p+0f));
  const Floats p34 = hn::MulAdd(hn::Set(f32, -0x1.4cf18ap-2f), f, hn::Set(f32, 0x1.e4af18p-2f));
  const Floats p56 = hn::MulAdd(hn::Set(f32, -0x1.41add2p-4f), f, hn::Set(f32, 0x1.8b5316p-3f));
  const Floats p567 = hn::MulAdd(hn::Set(f32, 0x1.f25f1cp-7f), f2, p56);
  const Floats p1234 = hn::MulAdd(p34, f2, p12);
  return hn::MulAdd(hn::MulAdd(p567, f4, p1234), f, exponent);
}

HWY_INLINE Doubles lower_half(Floats x) {
  return hn::PromoteTo(F64(), hn::LowerHalf(hn::Half<F32>(), x));
}

HWY_INLINE Doubles upper_half(Floats x) {
#if HWY_TARGET == HWY_SCALAR  // One lane, which is the lower half.
  (void)x;
  return hn::Zero(F64());
#else
  return hn::PromoteTo(F64(), hn::UpperHalf(hn::Half<F32>(), x));
#endif
}

// A sum of numbers and of their squares, in double.
struct Moments {
  Doubles sum;
  Doubles square;

  // Written out, because GCC compiles an implicit constructor for the wrong target.
  HWY_INLINE Moments() { sum = square = hn::Zero(F64()); }

  HWY_INLINE void add(Floats x) { add_halves(lower_half(x), upper_half(x)); }

  // Adds unit * x.
  HWY_INLINE void add_scaled(Floats x, Doubles unit) {
    add_halves(hn::Mul(lower_half(x), unit), hn::Mul(upper_half(x), unit));
  }

  HWY_INLINE void add_sums(Floats of_values, Floats of_squares) {
    sum = hn::Add(sum, hn::Add(lower_half(of_values), upper_half(of_values)));
    square = hn::Add(square, hn::Add(lower_half(of_squares), upper_half(of_squares)));
  }

  // Adds n numbers x = d + s, given n and the sums of d and d^2:
  // sum x = sum d + n s, and sum x^2 = sum d^2 + 2 s sum d + n s^2 = sum d^2 + s (sum d + sum x).
  HWY_INLINE void add_shifted_sums(Floats num_values, Floats of_values, Floats of_squares,
                                   Doubles shift) {
    const Doubles n = hn::Add(lower_half(num_values), upper_half(num_values));
    const Doubles sum_d = hn::Add(lower_half(of_values), upper_half(of_values));
    const Doubles sum_x = hn::MulAdd(n, shift, sum_d);
    sum = hn::Add(sum, sum_x);
    square = hn::Add(square, hn::Add(lower_half(of_squares), upper_half(of_squares)));
    square = hn::MulAdd(shift, hn::Add(sum_d, sum_x), square);
  }

  HWY_INLINE double total() const { return hn::GetLane(hn::SumOfLanes(F64(), sum)); }
  HWY_INLINE double total_square() const { return hn::GetLane(hn::SumOfLanes(F64(), square)); }

 private:
  HWY_INLINE void add_halves(Doubles lower, Doubles upper) {
    sum = hn::Add(sum, hn::Add(lower, upper));
    square = hn::MulAdd(lower, lower, hn::MulAdd(upper, upper, square));
  }
};

// Counts of the lanes of many vectors. A mask is a vector of 0 and -1, so the sum is negative.
HWY_INLINE std::uint64_t count_lanes(Integers minus_count) {
  const I32 i32;
  HWY_ALIGN std::int32_t lanes[hn::MaxLanes(I32())];
  hn::Store(minus_count, i32, lanes);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < hn::Lanes(i32); ++i) count += static_cast<std::uint64_t>(-lanes[i]);
  return count;
}

struct Accumulators {
  Moments logs;
  Moments magnitudes;
  Integers max_bits;
  Integers minus_zeros;  // Non-finite values included.
  Integers minus_nonfinites;

  HWY_INLINE Accumulators() { max_bits = minus_zeros = minus_nonfinites = hn::Zero(I32()); }

  // Any values, all in double.
  HWY_INLINE void add(Integers bits) {
    const F32 f32;
    const I32 i32;
    const auto is_nonfinite = hn::Gt(bits, hn::Set(i32, kInfinityBits - 1));
    minus_nonfinites = hn::Add(minus_nonfinites, hn::VecFromMask(i32, is_nonfinite));
    bits = hn::IfThenZeroElse(is_nonfinite, bits);  // From here on Inf and NaN are zeros.
    const auto is_zero = hn::Eq(bits, hn::Zero(i32));
    minus_zeros = hn::Add(minus_zeros, hn::VecFromMask(i32, is_zero));
    max_bits = hn::Max(max_bits, bits);

    // A subnormal is an integer times 2^-149. As float32 that integer is a normal number, which no
    // flushing mode changes.
    const auto is_small = hn::RebindMask(f32, hn::Lt(bits, hn::Set(i32, kSmallestNormalBits)));
    const Floats multiple = hn::ConvertTo(f32, bits);
    const Floats normal = hn::IfThenElse(is_small, multiple, hn::BitCast(f32, bits));
    const Floats bias =
        hn::IfThenElse(is_small, hn::Set(f32, 127.0f + 149.0f), hn::Set(f32, 127.0f));
    const Floats logarithm = log2_of_normal(hn::BitCast(i32, normal), bias);
    logs.add(hn::IfThenZeroElse(hn::RebindMask(f32, is_zero), logarithm));
    magnitudes.add(hn::IfThenZeroElse(is_small, hn::BitCast(f32, bits)));
    magnitudes.add_scaled(hn::IfThenElseZero(is_small, multiple), hn::Set(F64(), 0x1p-149));
  }
};

// The fast path: kBlockVectors vectors whose sums fit into float32, which takes half the work.
//
// It goes ahead on the assumption that the block is an easy one and looks in the end whether it
// was: no subnormals, no Inf or NaN, and a largest magnitude (if not zero) between 2^-46 and 2^60.
// Then no square overflows, and a square that underflows is too small against the largest to
// matter. Logarithms are summed about `shift`, a number near their mean, so that the spread of a
// narrow distribution is not lost in the rounding of its mean. A lane adds kBlockVectors numbers,
// so that sum_abs and sum_square of a block are good to 32 * 2^-24 = 2e-6 at worst.
constexpr std::size_t kBlockVectors = 32;
constexpr std::int32_t kLeastEasyMaximum = (127 - 46) << 23;
constexpr std::int32_t kLargestEasyMaximum = (127 + 60) << 23;

template <typename T>
HWY_INLINE bool add_easy_block(const T* values, float shift, Accumulators& all) {
  const F32 f32;
  const F64 f64;
  const I32 i32;
  const U32 u32;
  const std::size_t num_lanes = hn::Lanes(i32);
  const Floats bias_and_shift = hn::Set(f32, 127.0f + shift);
  Floats sum_log = hn::Zero(f32), sum_log_square = hn::Zero(f32);
  Floats sum_abs = hn::Zero(f32), sum_square = hn::Zero(f32);
  Integers minus_zeros = hn::Zero(i32), max_bits = hn::Zero(i32);
  Words min_less_one = hn::Set(u32, ~0u);  // Zero less one is the largest number: zeros drop out.
  for (std::size_t i = 0; i < kBlockVectors; ++i) {
    const Words magnitude = load_magnitudes(values + i * num_lanes);
    const Integers bits = hn::BitCast(i32, magnitude);
    const Integers is_zero = hn::VecFromMask(i32, hn::Eq(bits, hn::Zero(i32)));
    minus_zeros = hn::Add(minus_zeros, is_zero);
    max_bits = hn::Max(max_bits, bits);
    min_less_one = hn::Min(min_less_one, hn::Sub(magnitude, hn::Set(u32, 1)));
    const Floats logarithm =
        hn::AndNot(hn::BitCast(f32, is_zero), log2_of_normal(bits, bias_and_shift));
    sum_log = hn::Add(sum_log, logarithm);
    sum_log_square = hn::MulAdd(logarithm, logarithm, sum_log_square);
    const Floats x = hn::BitCast(f32, bits);
    sum_abs = hn::Add(sum_abs, x);
    sum_square = hn::MulAdd(x, x, sum_square);
  }
  const std::int32_t maximum = hn::GetLane(hn::MaxOfLanes(i32, max_bits));
  const std::uint32_t minimum = hn::GetLane(hn::MinOfLanes(u32, min_less_one)) + 1;
  const bool is_easy =
      maximum == 0 || (maximum >= kLeastEasyMaximum && maximum <= kLargestEasyMaximum &&
                       minimum >= kSmallestNormalBits);
  if (HWY_UNLIKELY(!is_easy)) return false;

  all.max_bits = hn::Max(all.max_bits, max_bits);
  all.minus_zeros = hn::Add(all.minus_zeros, minus_zeros);
  all.magnitudes.add_sums(sum_abs, sum_square);
  const Floats num_values =
      hn::ConvertTo(f32, hn::Add(minus_zeros, hn::Set(i32, static_cast<int>(kBlockVectors))));
  all.logs.add_shifted_sums(num_values, sum_log, sum_log_square, hn::Set(f64, shift));
  return true;
}

template <typename T>
HWY_NOINLINE void add_any_block(const T* values, Accumulators& all) {
  const I32 i32;
  Accumulators block = all;
  for (std::size_t i = 0; i < kBlockVectors; ++i)
    block.add(hn::BitCast(i32, load_magnitudes(values + i * hn::Lanes(i32))));
  all = block;
}

// A float near the mean of the logarithms so far. With ten bits after the point, exponent minus
// shift is exact in float32.
HWY_INLINE float mean_log2(const Accumulators& all, std::size_t num_seen) {
  const std::uint64_t num_values = num_seen - count_lanes(all.minus_zeros);
  if (num_values == 0) return 0;
  const double mean = all.logs.total() / static_cast<double>(num_values);
  return static_cast<float>(std::nearbyint(mean * 0x1p10) * 0x1p-10);
}

template <typename T>
HWY_INLINE ChunkSums measure_values(const T* values, std::size_t num_values) {
  const I32 i32;
  const std::size_t num_lanes = hn::Lanes(i32);
  const std::size_t block_values = kBlockVectors * num_lanes;
  Accumulators all;
  std::size_t i = 0;
  float shift = 0;  // Until a block has given a better one.
  for (; i + block_values <= num_values; i += block_values) {
    if (shift == 0 || !add_easy_block(values + i, shift, all)) add_any_block(values + i, all);
    if (shift == 0) shift = mean_log2(all, i + block_values);
  }
  for (; i + num_lanes <= num_values; i += num_lanes)
    all.add(hn::BitCast(i32, load_magnitudes(values + i)));
  std::uint64_t num_padding = 0;
  if (i < num_values) {
    T padded[hn::MaxLanes(I32())] = {};
    std::copy(values + i, values + num_values, padded);
    all.add(hn::BitCast(i32, load_magnitudes(padded)));
    num_padding = i + num_lanes - num_values;
  }
  ChunkSums sums;
  sums.num_nonfinite = count_lanes(all.minus_nonfinites);
  sums.num_zeros = count_lanes(all.minus_zeros) - sums.num_nonfinite - num_padding;
  sums.sum_log2 = all.logs.total();
  sums.sum_log2_square = all.logs.total_square();
  sums.sum_abs = all.magnitudes.total();
  sums.sum_square = all.magnitudes.total_square();
  sums.max_bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i32, all.max_bits)));
  return sums;
}

ChunkSums measure_float32(const float* values, std::size_t num_values) {
  return measure_values(values, num_values);
}
ChunkSums measure_bfloat16(const BFloat16Bits* values, std::size_t num_values) {
  return measure_values(values, num_values);
}
ChunkSums measure_float16(const Float16Bits* values, std::size_t num_values) {
  return measure_values(values, num_values);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(measure_float32);
HWY_EXPORT(measure_bfloat16);
HWY_EXPORT(measure_float16);

template <typename T>
ChunkSums measure_plainly(std::span<const T> values) {
  ChunkSums sums;
  // One long chain of additions: the wider type keeps the variance of nearly equal logarithms, a
  // small difference of these two sums, from drowning in its rounding.
  long double sum_log2 = 0, sum_log2_square = 0;
  for (const T value : values) {
    const std::uint32_t bits = magnitude_bits(value);
    if (bits >= kInfinityBits) {
      ++sums.num_nonfinite;
    } else if (bits == 0) {
      ++sums.num_zeros;
    } else {
      const double magnitude = magnitude_value(bits);
      const double logarithm = std::log2(magnitude);
      sum_log2 += logarithm;
      sum_log2_square += static_cast<long double>(logarithm) * logarithm;
      sums.sum_abs += magnitude;
      sums.sum_square += magnitude * magnitude;
      sums.max_bits = std::max(sums.max_bits, bits);
    }
  }
  sums.sum_log2 = static_cast<double>(sum_log2);
  sums.sum_log2_square = static_cast<double>(sum_log2_square);
  return sums;
}

}  // namespace

ChunkSums measure_chunk_scalar(std::span<const float> values) noexcept {
  return measure_plainly(values);
}
ChunkSums measure_chunk_scalar(std::span<const BFloat16Bits> values) noexcept {
  return measure_plainly(values);
}
ChunkSums measure_chunk_scalar(std::span<const Float16Bits> values) noexcept {
  return measure_plainly(values);
}

ChunkSums measure_chunk(std::span<const float> values) noexcept {
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_float32)(values.data(), values.size());
}
ChunkSums measure_chunk(std::span<const BFloat16Bits> values) noexcept {
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_bfloat16)(values.data(), values.size());
}
ChunkSums measure_chunk(std::span<const Float16Bits> values) noexcept {
  if (use_scalar()) return measure_plainly(values);
  return HWY_DYNAMIC_DISPATCH(measure_float16)(values.data(), values.size());
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
