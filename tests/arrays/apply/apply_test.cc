// apply.h: what holds between quantizing, pruning and packing, pieces, and bad arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <slimgrad/apply.h>
#include <slimgrad/error.h>

namespace slimgrad {
namespace {

std::vector<float> lognormal_values(std::size_t num_values) {
  std::mt19937 engine(9);
  std::normal_distribution<float> normal(-1, 1.5);
  std::vector<float> values(num_values);
  for (float& x : values) x = std::exp(normal(engine)) * (engine() % 2 ? 1.0f : -1.0f);
  return values;
}

Quantizer unbiased(const FloatFormat& format, double scale) {
  return {format, scale, Rounding::kStochastic, Underflow::kStochastic};
}

TEST(PruneQuantize, IsPruneThenQuantizeWhereRoundingDrawsNothing) {
  const std::vector<float> in = lognormal_values(10000);
  for (const Quantizer& quantizer :
       {Quantizer{FloatFormat(3, 2), 0.3}, Quantizer{FloatFormat(3, 0), 0.25}}) {
    std::vector<float> fused(in.size()), two_passes(in.size());
    const ApplyCounts counts = prune_quantize(in, std::span(fused), 0.8, quantizer, 5);
    const ApplyCounts pruned = prune(in, std::span(two_passes), 0.8, 5);
    const ApplyCounts quantized = quantize(two_passes, std::span(two_passes), quantizer, 5);
    EXPECT_EQ(fused, two_passes);
    EXPECT_EQ(counts.at_threshold, pruned.at_threshold);
    EXPECT_EQ(counts.zeros, quantized.zeros);
  }
}

// One draw serves pruning and rounding; the frequencies of all outcomes are those of two
// independent draws. The threshold 0.8 lies between the grid values 0.75 and 0.875 (share 0.4), or
// with the coarser grid below its smallest value 1 (share 0.8). n = 400,000, 4 standard errors.
TEST(PruneQuantize, HasTheLawOfTwoDraws) {
  constexpr std::size_t n = 400000;
  struct Case {
    Quantizer quantizer;
    double lower, upper, share;
  };
  for (const Case& c : {Case{unbiased(FloatFormat(3, 2), 1), 0.75, 0.875, 0.4},
                        Case{unbiased(FloatFormat(2, 1), 2), 0, 1, 0.8}})
    for (const double p : {0.1, 0.5, 0.97}) {
      const std::vector<float> in(n, static_cast<float>(-0.8 * p));
      std::vector<float> out(n);
      const ApplyCounts counts = prune_quantize(in, std::span(out), 0.8, c.quantizer, 3);
      const auto near = [&](double found, double expected) {
        EXPECT_NEAR(found / n, expected, 4 * std::sqrt(expected * (1 - expected) / n)) << p;
      };
      near(static_cast<double>(counts.at_threshold), p);
      const auto frequency = [&](double value) {
        return static_cast<double>(std::count(out.begin(), out.end(), static_cast<float>(value)));
      };
      near(frequency(-c.upper), p * c.share);
      if (c.lower > 0) near(frequency(-c.lower), p * (1 - c.share));
      EXPECT_EQ(static_cast<std::uint64_t>(frequency(0)), counts.zeros);
      EXPECT_EQ(frequency(0) + frequency(-c.upper) + (c.lower > 0 ? frequency(-c.lower) : 0), n);
    }
}

// Mean of T(x) over n seeds against x, for the whole chain and a threshold off the grid.
TEST(PruneQuantize, IsUnbiasedWithStochasticRoundingAndUnderflow) {
  constexpr int n = 4000;
  const std::vector<float> in = {0.01f, -0.05f, 0.2f, 0.45f, -0.7f, 1.1f, 2.9f, -5.3f};
  std::vector<double> sum(in.size()), square(in.size());
  std::vector<float> out(in.size());
  for (int seed = 0; seed < n; ++seed) {
    prune_quantize(in, std::span(out), 0.77, unbiased(FloatFormat(3, 1), 0.9),
                   static_cast<std::uint64_t>(seed));
    for (std::size_t i = 0; i < in.size(); ++i) {
      sum[i] += out[i];
      square[i] += static_cast<double>(out[i]) * out[i];
    }
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double mean = sum[i] / n;
    const double deviation = std::sqrt(square[i] / n - mean * mean);
    EXPECT_NEAR(mean, in[i], 4 * deviation / std::sqrt(n)) << in[i];
  }
}

TEST(Apply, PiecesGiveTheSame) {
  const std::vector<float> in = lognormal_values(5000);
  const Quantizer quantizer = unbiased(FloatFormat(2, 1), 0.5);
  std::vector<float> whole(in.size()), pieces(in.size());
  const ApplyCounts all = prune_quantize(in, std::span(whole), 0.4, quantizer, 8);
  ApplyCounts sum;
  std::size_t start = 0;
  for (const std::size_t end :
       {std::size_t{256}, std::size_t{1024}, std::size_t{4096}, in.size()}) {
    sum += prune_quantize(std::span(in).subspan(start, end - start),
                          std::span(pieces).subspan(start, end - start), 0.4, quantizer, 8, start);
    start = end;
  }
  EXPECT_EQ(whole, pieces);
  EXPECT_EQ(all, sum);
}

TEST(Prune, ThresholdOfZeroLeavesEverythingAlone) {
  const std::vector<float> in = {0.0f, -0.0f, 1.0f, 1e-40f};
  std::vector<float> out(4);
  const ApplyCounts counts = prune(in, std::span(out), 0.0, 1);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 16), 0);
  EXPECT_EQ(counts, (ApplyCounts{2, 0, 0}));
}

// 0.1 is not a bfloat16: the results are the bfloat16 next to it, and their mean is still x.
TEST(Prune, HalvesReachTheThresholdRoundedToTheirType) {
  constexpr std::size_t n = 200000;
  const BFloat16Bits x = {0x3d00};  // 0.03125
  const std::vector<BFloat16Bits> in(n, x);
  std::vector<BFloat16Bits> out(n);
  const ApplyCounts counts = prune(in, std::span(out), 0.1, 1);
  const double threshold = std::bit_cast<float>(0x3dcdu << 16);  // bfloat16(0.1)
  for (const BFloat16Bits y : out) ASSERT_TRUE(y.bits == 0 || y.bits == 0x3dcd) << y.bits;
  const double p = 0.03125 / threshold;
  EXPECT_NEAR(static_cast<double>(counts.at_threshold) / n, p, 4 * std::sqrt(p * (1 - p) / n));
}

TEST(Quantize, SaturatesAtWhatTheTypeCanHold) {
  // At scale 2^100 the grid of 1-7-0 reaches far beyond float32: nothing finite may become Inf.
  std::vector<float> x = {std::numeric_limits<float>::max()};
  quantize(x, std::span(x), {FloatFormat(7, 0), 0x1p100}, 1);
  EXPECT_EQ(x[0], 0x1p127f);
  std::vector<Float16Bits> half = {{0x7bff}, {0xfbff}};
  quantize(half, std::span(half), {FloatFormat(5, 2), 16.0}, 1);
  EXPECT_EQ(half[0].bits, 0x7b00);  // 57344 = 1.75 * 2^15
  EXPECT_EQ(half[1].bits, 0xfb00);
}

template <typename T>
void expect_pack_is_quantize(const std::vector<T>& in, const Quantizer& quantizer) {
  std::vector<T> quantized(in.size()), unpacked(in.size());
  const ApplyCounts counts = quantize(in, std::span(quantized), quantizer, 3);
  std::vector<std::uint8_t> packed(packed_size(quantizer.format, in.size()));
  EXPECT_EQ(pack(in, std::span(packed), quantizer, 3), counts);
  unpack(packed, std::span(unpacked), quantizer.format, quantizer.scale);
  EXPECT_EQ(std::memcmp(quantized.data(), unpacked.data(), in.size() * sizeof(T)), 0)
      << quantizer.format.name();
}

TEST(Pack, UnpackedIsQuantized) {
  const std::vector<float> values = lognormal_values(9001);
  std::vector<BFloat16Bits> brain;
  for (const float x : values)
    brain.push_back({static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)});
  for (int exponent_bits = 1; exponent_bits <= 7; ++exponent_bits)
    for (int mantissa_bits = 0; mantissa_bits + exponent_bits <= 7 && mantissa_bits <= 6;
         ++mantissa_bits)
      for (const double scale : {0.3, 2.0}) {
        const FloatFormat format(exponent_bits, mantissa_bits);
        expect_pack_is_quantize(values, {format, scale});
        expect_pack_is_quantize(values, unbiased(format, scale));
        expect_pack_is_quantize(brain, unbiased(format, scale));
      }
}

TEST(Pack, CodesAreTheFormats) {
  const FloatFormat format(2, 1);
  std::vector<float> values;
  for (std::uint32_t code = 0; code < 16; ++code)
    values.push_back(static_cast<float>(format.value(code)));
  std::vector<std::uint8_t> packed(8);
  pack(values, std::span(packed), {format, 1.0}, 0);
  // Exponent field 0 is zero whatever the rest is: codes 1, 8 and 9 are written as 0.
  EXPECT_THAT(packed, testing::ElementsAre(0x00, 0x32, 0x54, 0x76, 0x00, 0xba, 0xdc, 0xfe));
}

TEST(Pack, CountsWhatItCannotHold) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> in = {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  std::vector<std::uint8_t> packed(2);
  const Quantizer quantizer = {FloatFormat(2, 1), 1.0};
  EXPECT_EQ(pack(in, std::span(packed), quantizer, 0).nonfinite, 3u);
  std::vector<float> out(4);
  unpack(packed, std::span(out), quantizer.format, 1.0);
  EXPECT_THAT(out, testing::ElementsAre(3.0f, -3.0f, 0.0f, 1.0f));
}

// ---- bad arguments -----------------------------------------------------------------------------

template <typename Call>
void expect_invalid(const Call& call, const std::string& text) {
  try {
    call();
    FAIL() << "no error; expected " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(text));
  }
}

TEST(Apply, BadArgumentsAreErrors) {
  std::vector<float> x(128), shorter(127);
  std::vector<Float16Bits> half(8);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, -1.0, nan, inf, 1e-39, 1e39})
    expect_invalid(
        [&] {
          quantize(x, std::span(x), {FloatFormat(3, 2), scale}, 0);
        },
        "[quantize] expected a positive scale");
  for (const double threshold : {-1.0, nan, inf, 1e39})
    expect_invalid([&] { prune(x, std::span(x), threshold, 0); }, "[prune] expected a threshold");
  expect_invalid([&] { prune(half, std::span(half), 70000.0, 0); }, "[prune] expected a threshold");
  expect_invalid(
      [&] {
        quantize(half, std::span(half), {FloatFormat(1, 0), 70000.0}, 0);
      },
      "[quantize] expected a scale at which");
  expect_invalid([&] { prune(x, std::span(shorter), 1.0, 0); }, "as many output as input");
  expect_invalid([&] { prune(x, std::span(x), 1.0, 0, 32); }, "multiple of 256");
  std::vector<std::uint8_t> packed(63);
  expect_invalid(
      [&] {
        pack(x, std::span(packed), {FloatFormat(2, 1), 1.0}, 0);
      },
      "[pack] expected ceil(values * bits / 8)");
  expect_invalid([&] { unpack(packed, std::span(x), FloatFormat(2, 1), 1.0); },
                 "[unpack] expected ceil(values * bits / 8)");
  expect_invalid([] { parse_rounding("up"); },
                 "rounding to be one of nearest stochastic, got 'up'");
  expect_invalid([] { parse_underflow("up"); }, "underflow to be one of zero stochastic");
}

}  // namespace
}  // namespace slimgrad
