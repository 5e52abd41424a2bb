#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/measure/sample_sums.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "kernels/dispatch.h"
#include "kernels/measure/sample_sums.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::samples {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Adds the logarithms of whole vectors of values, and counts zeros; returns how many values that
// was.
std::size_t add_logarithms(const float* values, std::size_t num_values, SampleSums& sums) {
  const hn::ScalableTag<float> f32;
  const hn::RebindToSigned<decltype(f32)> i32;
  const hn::RepartitionToWide<decltype(i32)> i64;
  const hn::RebindToUnsigned<decltype(i64)> u64;
  using Integers = hn::Vec<decltype(i32)>;
  using Floats = hn::Vec<decltype(f32)>;
  const auto c = [&](int i) HWY_ATTR { return hn::Set(f32, kLog2Bend[i]); };
  const auto multiply_add = [](Floats x, Floats y, Floats z)
                                HWY_ATTR { return hn::Add(hn::Mul(x, y), z); };
  const auto low_half = hn::Set(u64, 0xffffffffu);
  auto sum_even = hn::Zero(i64), sum_odd = hn::Zero(i64);
  auto low = hn::Zero(u64), high = hn::Zero(u64);
  Integers max_bits = hn::Zero(i32);
  std::uint64_t num_zeros = 0;
  const std::size_t width = hn::Lanes(i32);
  std::size_t i = 0;
  for (; i + width <= num_values; i += width) {
    Integers bits = hn::And(hn::BitCast(i32, hn::LoadU(f32, values + i)),
                            hn::Set(i32, static_cast<std::int32_t>(~kSignMask)));
    const auto is_zero = hn::Eq(bits, hn::Zero(i32));
    num_zeros += hn::CountTrue(i32, is_zero);
    const auto is_finite = hn::Lt(bits, hn::Set(i32, kInfinityBits));
    bits = hn::IfThenElseZero(is_finite, bits);
    max_bits = hn::Max(max_bits, bits);
    // As log2_in_fixed_point().
    const auto is_small = hn::Lt(bits, hn::Set(i32, kSmallestNormalBits));
    const Integers normal =
        hn::IfThenElse(is_small, hn::BitCast(i32, hn::ConvertTo(f32, bits)), bits);
    const Integers bias =
        hn::IfThenElse(is_small, hn::Set(i32, kLog2BiasOfSubnormals), hn::Set(i32, kLog2Bias));
    const Integers mantissa = hn::OrAnd(hn::Set(i32, 127 << 23), normal, hn::Set(i32, 0x007fffff));
    const Floats u = hn::Sub(hn::BitCast(f32, mantissa), hn::Set(f32, 1.5f));
    const Floats v = hn::Mul(u, u);
    const Floats even = multiply_add(multiply_add(c(4), v, c(2)), v, c(0));
    const Floats odd = multiply_add(multiply_add(c(5), v, c(3)), v, c(1));
    const Floats bend = hn::Mul(multiply_add(odd, u, even), hn::Sub(hn::Set(f32, 0.25f), v));
    const Integers rounded = hn::ConvertTo(i32, hn::Add(bend, hn::Set(f32, 0.5f)));
    const Integers logarithm =
        hn::IfThenZeroElse(hn::Eq(bits, hn::Zero(i32)), hn::Add(hn::Sub(normal, bias), rounded));
    const auto odd_lanes = hn::ShiftRight<32>(hn::BitCast(i64, logarithm));
    sum_odd = hn::Add(sum_odd, odd_lanes);
    sum_even =
        hn::Add(sum_even, hn::ShiftRight<32>(hn::ShiftLeft<32>(hn::BitCast(i64, logarithm))));
    const auto squares = hn::BitCast(u64, hn::MulEven(logarithm, logarithm));
    const Integers shifted = hn::BitCast(i32, odd_lanes);
    const auto odd_squares = hn::BitCast(u64, hn::MulEven(shifted, shifted));
    low = hn::Add(low, hn::Add(hn::And(squares, low_half), hn::And(odd_squares, low_half)));
    high = hn::Add(high, hn::Add(hn::ShiftRight<32>(squares), hn::ShiftRight<32>(odd_squares)));
  }
  sums.num_zeros += num_zeros;
  sums.log2 += hn::GetLane(hn::SumOfLanes(i64, hn::Add(sum_even, sum_odd)));
  sums.log2_square += hn::GetLane(hn::SumOfLanes(u64, low));
  sums.log2_square += WideInteger{hn::GetLane(hn::SumOfLanes(u64, high))} << 32;
  sums.max_bits = std::max(sums.max_bits,
                           static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i32, max_bits))));
  return i;
}

#else
std::size_t add_logarithms(const float*, std::size_t, SampleSums&) { return 0; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels::samples
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace samples {
HWY_EXPORT(add_logarithms);

constexpr std::size_t kPiece = 65536;  // values that the sums of a bin have room for
constexpr std::uint64_t kOne = std::uint64_t{1} << 42;  // more than their fractions add up to

// Adds the counts and magnitudes of values whose zeros are counted already.
//
// Nothing branches: zeros and values come in any order, which no CPU can guess. Of a mantissa
// m = 1 + f, in units of 2^-23, only f is added, the count together with it:
// sum m = n 2^23 + sum f, and sum m^2 = n 2^46 + 2^24 sum f + sum f^2.
void add_magnitudes(std::span<const float> values, std::uint64_t num_zeros, SampleSums& sums) {
  std::array<std::uint64_t, LogHistogram::kNumBins> counts_and_fractions{}, squares{};
  for (const float x : values) {
    const std::uint32_t bits = magnitude_bits(x), bin = bits >> LogHistogram::kShift;
    const std::uint64_t fraction = bits & 0x007fffffu;
    counts_and_fractions[bin] += kOne + fraction;
    squares[bin] += fraction * fraction;
  }
  counts_and_fractions[0] -= num_zeros * kOne;
  for (std::uint32_t bin = 0; bin < LogHistogram::kNumBins; ++bin) {
    const std::uint64_t count = counts_and_fractions[bin] / kOne, octave = bin / 8;
    const std::uint64_t fractions = counts_and_fractions[bin] % kOne;
    if (count == 0) continue;
    if (octave == SampleSums::kOctaves) {  // Inf and NaN
      sums.num_nonfinite += count;
      continue;
    }
    const std::uint64_t num_normal = octave == 0 ? 0 : count;
    sums.counts[bin] += count;
    sums.mantissas[octave] += (num_normal << 23) + fractions;
    sums.squares[octave] += WideInteger{num_normal} << 46;
    sums.squares[octave] += (num_normal == 0 ? 0 : fractions << 24) + WideInteger{squares[bin]};
  }
}

}  // namespace samples

SampleSums sum_sample(std::span<const float> values) noexcept {
  using namespace samples;
  SampleSums sums;
  std::size_t done = 0;
  while (!use_scalar() && done < values.size()) {
    const auto piece = values.subspan(done, std::min(kPiece, values.size() - done));
    const std::uint64_t zeros_before = sums.num_zeros;
    const std::size_t n = HWY_DYNAMIC_DISPATCH(add_logarithms)(piece.data(), piece.size(), sums);
    if (n == 0) break;
    add_magnitudes(piece.first(n), sums.num_zeros - zeros_before, sums);
    done += n;
  }
  for (const float x : values.subspan(done)) sums.add(magnitude_bits(x));
  return sums;
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
