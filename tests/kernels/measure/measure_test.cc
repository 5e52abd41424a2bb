// Every kernel set against the specification, to the bit, and the specification against plain
// arithmetic.
#include "kernels/measure/measure.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "kernels/dispatch.h"
#include "kernels/magnitude.h"
#include "kernels/measure/log2.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
T from_bits(std::uint32_t bits) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(bits);
  else
    return T{static_cast<std::uint16_t>(bits)};
}

// Lognormal values with random signs, rounded towards zero to T. `num_special` in 16 of them are
// replaced by random bit patterns: NaN, Inf, subnormals, zeros and the extremes of the range.
template <typename T>
std::vector<T> make_values(std::size_t num_values, int num_special, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(-1.0, 1.5);
  std::vector<T> values(num_values);
  for (T& value : values) {
    const std::uint64_t coins = engine();
    const auto x = static_cast<float>(std::exp(normal(engine)));
    std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    if constexpr (std::is_same_v<T, Float16Bits>)
      bits = (bits >> 13) - (112 << 10);  // e^-1 times e^(+-9) is normal in float16.
    else if constexpr (std::is_same_v<T, BFloat16Bits>)
      bits >>= 16;
    const int width = 8 * sizeof(T);
    bits |= static_cast<std::uint32_t>(coins & 1) << (width - 1);
    if (static_cast<int>((coins >> 1) & 15) < num_special) {
      const auto noise = static_cast<std::uint32_t>(coins >> 32);
      constexpr std::uint32_t kInfinity = std::is_same_v<T, float>          ? 0x7f800000
                                          : std::is_same_v<T, BFloat16Bits> ? 0x7f80
                                                                            : 0x7c00;
      const std::uint32_t sign = 1u << (width - 1);
      const std::uint32_t choices[] = {0,
                                       sign,
                                       kInfinity,
                                       kInfinity | sign,
                                       kInfinity | 1,
                                       1,
                                       kInfinity - 1,
                                       noise >> (32 - width),
                                       noise & 0x3f,
                                       sign | 1};
      bits = choices[(coins >> 8) % std::size(choices)];
    }
    value = from_bits<T>(bits);
  }
  return values;
}

// One long chain of additions, with the library's logarithm.
template <typename T>
ChunkSums plain_sums(std::span<const T> values) {
  ChunkSums sums;
  long double sum_log2 = 0, sum_log2_square = 0, sum_abs = 0, sum_square = 0;
  for (const T value : values) {
    const std::uint32_t bits = magnitude_bits(value);
    sums.num_nonfinite += bits >= kInfinityBits;
    sums.num_zeros += bits == 0;
    if (bits >= kInfinityBits || bits == 0) continue;
    const long double magnitude = magnitude_value(bits), logarithm = std::log2(magnitude);
    sum_log2 += logarithm;
    sum_log2_square += logarithm * logarithm;
    sum_abs += magnitude;
    sum_square += magnitude * magnitude;
    sums.max_bits = std::max(sums.max_bits, bits);
  }
  sums.sum_log2 = static_cast<double>(sum_log2);
  sums.sum_log2_square = static_cast<double>(sum_log2_square);
  sums.sum_abs = static_cast<double>(sum_abs);
  sums.sum_square = static_cast<double>(sum_square);
  return sums;
}

void expect_close(const ChunkSums& got, const ChunkSums& want, std::size_t num_values) {
  EXPECT_EQ(got.num_zeros, want.num_zeros);
  EXPECT_EQ(got.num_nonfinite, want.num_nonfinite);
  EXPECT_EQ(got.max_bits, want.max_bits);
  EXPECT_NEAR(got.sum_abs, want.sum_abs, kSumRelativeError * want.sum_abs);
  EXPECT_NEAR(got.sum_square, want.sum_square, kSumRelativeError * want.sum_square);
  const auto n = static_cast<double>(num_values);
  // The sum of |log2| is at most the root of n times the sum of squares.
  const double sum_abs_log2 = std::sqrt(n * want.sum_log2_square);
  const double log2_error = kLog2Error * n + kLog2RelativeError * sum_abs_log2;
  EXPECT_NEAR(got.sum_log2, want.sum_log2, 1.1 * log2_error + 1e-300);
  EXPECT_NEAR(got.sum_log2_square, want.sum_log2_square,
              2.2 * (kLog2Error * sum_abs_log2 + 2 * kLog2RelativeError * want.sum_log2_square) +
                  n * kLog2Error * kLog2Error);
}

class MeasureChunkBySet : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select_kernel_set(GetParam()); }
  void TearDown() override { select_kernel_set("best"); }
};
INSTANTIATE_TEST_SUITE_P(Kernels, MeasureChunkBySet, testing::ValuesIn(kernel_sets()),
                         [](const auto& info) { return info.param; });

template <typename T>
void agree_with_specification() {
  std::vector<std::size_t> lengths;
  for (std::size_t n = 0; n <= 130; ++n) lengths.push_back(n);
  for (std::size_t n = 256; n <= 4096; n *= 2)
    for (const std::size_t length : {n - 1, n, n + 1, n + n / 2 + 3}) lengths.push_back(length);
  for (const int num_special : {0, 1, 16}) {
    for (const std::size_t n : lengths) {
      SCOPED_TRACE(testing::Message() << n << " values, specials " << num_special);
      const std::vector<T> values = make_values<T>(n + 1, num_special, n * 17 + num_special);
      // From the second element on: kernels must not ask for alignment.
      const std::span<const T> span = std::span<const T>(values).subspan(1);
      const ChunkSums specification = measure_chunk_scalar(span);
      expect_close(specification, plain_sums(span), n);
      ASSERT_EQ(measure_chunk(span), specification);
    }
  }
}

TEST_P(MeasureChunkBySet, AgreesWithTheSpecificationFloat32) { agree_with_specification<float>(); }
TEST_P(MeasureChunkBySet, AgreesWithTheSpecificationBFloat16) {
  agree_with_specification<BFloat16Bits>();
}
TEST_P(MeasureChunkBySet, AgreesWithTheSpecificationFloat16) {
  agree_with_specification<Float16Bits>();
}

TEST_P(MeasureChunkBySet, LogarithmStaysWithinItsBound) {
  // 2^13 mantissas of each of several exponents, one value at a time, so that nothing averages out.
  for (const std::uint32_t exponent : {0u, 1u, 60u, 120u, 126u, 127u, 128u, 200u, 254u}) {
    for (std::uint32_t mantissa = 1; mantissa < (1u << 23); mantissa += 1021) {
      const float x = std::bit_cast<float>((exponent << 23) | mantissa);
      const double exact = std::log2(static_cast<double>(x));
      const double got = measure_chunk(std::span(&x, 1)).sum_log2;
      ASSERT_NEAR(got, exact, kLog2Error) << x;
    }
  }
}

TEST_P(MeasureChunkBySet, EasyAndAwkwardBlocksAgree) {
  // The same values scaled by powers of two: blocks in and out of the fast path's range, and
  // mixtures of the two kinds in one chunk.
  const std::vector<float> values = make_values<float>(8192, 0, 3);
  for (const int power : {-120, -60, -46, -45, -44, -20, 0, 40, 57, 58, 59, 60, 61, 90, 110}) {
    SCOPED_TRACE(power);
    std::vector<float> scaled = values;
    for (float& x : scaled) x = std::ldexp(x, power);
    EXPECT_EQ(measure_chunk(scaled), measure_chunk_scalar(scaled));
    expect_close(measure_chunk(scaled), plain_sums<float>(scaled), scaled.size());
    std::copy(values.begin(), values.begin() + 4000, scaled.begin() + 2000);
    scaled[4500] = std::numeric_limits<float>::infinity();
    scaled[5500] = 3e-42f;
    EXPECT_EQ(measure_chunk(scaled), measure_chunk_scalar(scaled));
    expect_close(measure_chunk(scaled), plain_sums<float>(scaled), scaled.size());
  }
}

#if defined(__SSE2__)
TEST_P(MeasureChunkBySet, FlushingSubnormalsChangesNothing) {
  const std::vector<float> floats = make_values<float>(3000, 8, 5);
  const std::vector<BFloat16Bits> bfloats = make_values<BFloat16Bits>(3000, 8, 6);
  const std::vector<Float16Bits> halves = make_values<Float16Bits>(3000, 8, 7);
  const auto measure_all = [&] {
    return std::array{measure_chunk(floats), measure_chunk(bfloats), measure_chunk(halves)};
  };
  const auto normal = measure_all();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);  // FTZ and DAZ
  const auto flushed = measure_all();
  _mm_setcsr(mode);
  EXPECT_EQ(normal, flushed);
}
#endif

TEST(MeasureChunk, SpecificationByHand) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f, -0.0f, 4.0f, -0.5f, infinity, -infinity, NAN, 0x1p-149f};
  const ChunkSums sums = measure_chunk_scalar(std::span<const float>(values));
  EXPECT_EQ(sums.num_zeros, 2u);
  EXPECT_EQ(sums.num_nonfinite, 3u);
  EXPECT_EQ(sums.sum_log2, 2.0 - 1.0 - 149.0);
  EXPECT_EQ(sums.sum_log2_square, 4.0 + 1.0 + 149.0 * 149.0);
  EXPECT_EQ(sums.sum_abs, 4.5);
  EXPECT_EQ(sums.sum_square, 16.25);
  EXPECT_EQ(sums.max_bits, std::bit_cast<std::uint32_t>(4.0f));
}

TEST(Magnitude, EveryFloat16AndBFloat16) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const Float16Bits half{static_cast<std::uint16_t>(code)};
    const int exponent = (code >> 10) & 31, mantissa = code & 1023;
    if (exponent == 31) {
      const float got = std::bit_cast<float>(magnitude_bits(half));
      EXPECT_TRUE(mantissa == 0 ? std::isinf(got) : std::isnan(got)) << code;
    } else {
      const double want =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(magnitude_value(magnitude_bits(half)), want) << code;
    }
    const BFloat16Bits bfloat{static_cast<std::uint16_t>(code)};
    const float wide = std::abs(std::bit_cast<float>(code << 16));
    EXPECT_EQ(magnitude_bits(bfloat), std::bit_cast<std::uint32_t>(wide)) << code;
  }
}

}  // namespace
}  // namespace slimgrad::kernels
