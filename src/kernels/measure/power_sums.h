// Sums over magnitudes that maximum-likelihood fits need, in one pass each.
//
// Zeros, infinities and NaNs are left out. Arithmetic is in double whatever the element type, in
// blocks, so that the relative rounding error of a mean stays below 1e-14; the bits are the same on
// every CPU. No allocation; a pass over 1e6 floats takes a few milliseconds on AVX2.
#ifndef SLIMGRAD_KERNELS_MEASURE_POWER_SUMS_H_
#define SLIMGRAD_KERNELS_MEASURE_POWER_SUMS_H_

#include <array>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

struct NonzeroRange {
  std::uint64_t count = 0;  // of finite non-zero values
  double min = 0;           // their smallest and largest magnitude; 0 if there are none
  double max = 0;
};

NonzeroRange nonzero_range(std::span<const float> values) noexcept;
NonzeroRange nonzero_range(std::span<const double> values) noexcept;

// Sums of y and y^2, y = |x| / max; where that is denormal, which no quotient of floats is, it has
// fewer digits. REQUIRES: max is a normal double, no finite |x| above it.
std::array<double, 2> magnitude_moments(std::span<const float> values, double max) noexcept;
std::array<double, 2> magnitude_moments(std::span<const double> values, double max) noexcept;

// Sums of y^shape (ln y)^k for k = 0..7. Shape 0 gives the moments of ln y.
// REQUIRES: as above, shape >= 0.
std::array<double, 8> power_sums(std::span<const float> values, double max, double shape) noexcept;
std::array<double, 8> power_sums(std::span<const double> values, double max, double shape) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_POWER_SUMS_H_
