// Payloads that round: levels, float codes, pruned tensors, and tables from a model.
#include <slimgrad/payload.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <slimgrad/apply.h>

#include "arrays/coding/payload_samples.h"
#include "arrays/coding/symbols.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

using enum PayloadKind;
using testing::HasSubstr;

// The levels by brute force, in long double.
TEST(PayloadKinds, UniformRoundsToTheNearestLevel) {
  const std::vector<float> values = gradient(10000);
  for (int bits = 2; bits <= 8; ++bits) {
    const Bytes payload = encode(view(values, DType::kFloat32), {.kind = kUniform, .bits = bits});
    const PayloadInfo info = inspect(payload);
    const int half = (1 << (bits - 1)) - 1;
    float largest = 0;
    for (const float x : values) largest = std::max(largest, std::abs(x));
    EXPECT_NEAR(info.scale * half, largest, 1e-6 * largest);
    const std::vector<float> back = floats_of(decode(payload));
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(static_cast<long double>(back[i]) - values[i]), 0.5000005L * info.scale);
      const long double level = static_cast<long double>(back[i]) / info.scale;
      EXPECT_NEAR(static_cast<double>(level), std::round(static_cast<double>(level)), 1e-5);
      EXPECT_LE(std::abs(level), half + 1e-5);
    }
  }
}

TEST(PayloadKinds, UniformSaturatesAtAGivenScaleAndZeroIsALevel) {
  const std::vector<float> values = {0.0f, -0.0f, 0.4f, 0.6f, -1.5f, 2.5f, 1e30f, -1e30f};
  std::vector<float> many;
  for (int i = 0; i < 100; ++i) many.insert(many.end(), values.begin(), values.end());
  const Bytes payload =
      encode(view(many, DType::kFloat32), {.kind = kUniform, .bits = 3, .scale = 1.0});
  const std::vector<float> back = floats_of(decode(payload));
  const std::vector<float> expected = {0, 0, 0, 1, -2, 2, 3, -3};  // ties to even
  EXPECT_EQ(std::vector<float>(back.begin(), back.begin() + 8), expected);
}

TEST(PayloadKinds, StochasticUniformRoundingIsUnbiased) {
  const std::vector<float> values(200'000, 0.3f);
  const Bytes payload = encode(
      view(values, DType::kFloat32),
      {.kind = kUniform, .bits = 4, .scale = 1.0, .rounding = Rounding::kStochastic, .seed = 5});
  const std::vector<float> back = floats_of(decode(payload));
  const double mean = std::accumulate(back.begin(), back.end(), 0.0) / 2e5;
  EXPECT_NEAR(mean, 0.3, 5 * std::sqrt(0.21 / 2e5));  // five standard errors
}

TEST(PayloadKinds, FloatCodesAreThoseOfQuantize) {
  const std::vector<float> values = gradient(300'000);
  for (const FloatFormat format : {FloatFormat(4, 3), FloatFormat(2, 1), FloatFormat(5, 0)})
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      const Bytes payload = encode(
          view(values, DType::kFloat32),
          {.kind = kFloat, .format = format, .scale = 0x1p-9, .rounding = rounding, .seed = 3});
      std::vector<float> expected(values.size());
      quantize(values, expected,
               {format, 0x1p-9, rounding,
                rounding == Rounding::kNearest ? Underflow::kZero : Underflow::kStochastic},
               3);
      EXPECT_EQ(floats_of(decode(payload)), expected);
    }
}

TEST(PayloadKinds, PrunedIsExactWithExactSurvivors) {
  std::vector<float> values = pruned_gradient(300'000, 1e-3);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  values[6] = -std::numeric_limits<float>::infinity();
  values[7] = -0.0f;
  const Bytes payload = encode(view(values, DType::kFloat32), {.kind = kPruned});
  EXPECT_EQ(inspect(payload).threshold, 1e-3f);
  EXPECT_EQ(decode(payload), bytes_of_values(values));
  const std::vector<BFloat16Bits> halves = to_bfloat16(values);
  const Bytes small = encode(view(halves, DType::kBFloat16), {.kind = kPruned});
  EXPECT_EQ(decode(small), bytes_of_values(halves));
}

TEST(PayloadKinds, PrunedSurvivorsAreRoundedAsAsked) {
  const std::vector<float> values = pruned_gradient(300'000, 1e-3);
  const auto back = [&](Survivors survivors) {
    return floats_of(
        decode(encode(view(values, DType::kFloat32),
                      {.kind = kPruned, .format = FloatFormat(5, 2), .survivors = survivors})));
  };
  const std::vector<float> halves = back(Survivors::kBFloat16), codes = back(Survivors::kFloat);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) <= 1e-3f) {
      EXPECT_EQ(halves[i], values[i]);
      EXPECT_EQ(codes[i], values[i]);
    } else {
      EXPECT_LE(std::abs(halves[i] - values[i]), std::abs(values[i]) / 256);
      EXPECT_LE(std::abs(codes[i] - values[i]), std::abs(values[i]) / 8 * 1.0001f);
    }
  }
}

// The entropy of the classes, plus for every survivor that of its code.
TEST(PayloadKinds, PrunedComesOutNearTheEntropyOfTheMixture) {
  for (const double threshold : {2e-4, 1e-3, 5e-3}) {
    const std::vector<float> values = pruned_gradient(1 << 20, threshold);
    const EncodeOptions options = {
        .kind = kPruned, .format = FloatFormat(4, 1), .survivors = Survivors::kFloat};
    const Bytes payload = encode(view(values, DType::kFloat32), options);
    const std::vector<float> back = floats_of(decode(payload));
    Weights classes = {};
    std::map<float, std::uint64_t> codes;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool survives = std::abs(values[i]) > static_cast<float>(threshold);
      ++classes[survives ? 3 : values[i] == 0 ? 0 : values[i] > 0 ? 1 : 2];
      if (survives) ++codes[back[i]];
    }
    Weights weights = {};
    std::size_t symbol = 0;
    for (const auto& [value, count] : codes) weights[symbol++] = count;
    const double least = (entropy_bits(classes) + entropy_bits(weights)) / 8;
    EXPECT_LT(static_cast<double>(payload.size()), 1.01 * least + 1000) << threshold;
  }
}

TEST(PayloadKinds, ModelsNeedLittleMoreThanCounting) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(1 << 18);
  for (float& x : values) x = normal(random);
  const auto size = [&](TableModel model) {
    const Bytes payload = encode(view(values, DType::kFloat32), {.kind = kUniform, .model = model});
    const PayloadInfo info = inspect(payload);
    EXPECT_EQ(info.model, model);
    return static_cast<double>(payload.size());
  };
  const double counted = size(TableModel::kCounted);
  EXPECT_LT(size(TableModel::kNormal), 1.002 * counted);
  EXPECT_LT(size(TableModel::kGennorm), 1.002 * counted);
  EXPECT_GT(size(TableModel::kLaplace), 1.005 * counted);  // the wrong law costs
}

// In the quantizer's units; the law's own scale is that of a normal law, sqrt 2 times its
// deviation.
TEST(PayloadKinds, TheHeaderTellsTheModel) {
  const std::vector<float> values = gradient(1 << 14);
  const PayloadInfo counted = inspect(encode(view(values, DType::kFloat32), {.kind = kUniform}));
  EXPECT_EQ(counted.model_shape, 0);
  EXPECT_EQ(counted.model_scale, 0);
  const auto law = [&](TableModel model) {
    return inspect(encode(view(values, DType::kFloat32), {.kind = kUniform, .model = model}));
  };
  const PayloadInfo normal = law(TableModel::kNormal), laplace = law(TableModel::kLaplace);
  EXPECT_EQ(normal.model_shape, 2);
  EXPECT_EQ(laplace.model_shape, 1);
  double mean_abs = 0, mean_square = 0;
  for (const float x : values) {
    mean_abs += std::abs(double{x}) / static_cast<double>(values.size());
    mean_square += double{x} * double{x} / static_cast<double>(values.size());
  }
  // Sixteen bits hold a parameter to one part in 4096.
  EXPECT_NEAR(normal.model_scale * double{normal.scale} / std::sqrt(2 * mean_square), 1, 3e-4);
  EXPECT_NEAR(laplace.model_scale * double{laplace.scale} / mean_abs, 1, 3e-4);
}

TEST(PayloadKinds, RefusesNaNAndInfWhereThereAreNoCodesAndSaysHowMany) {
  std::vector<float> values = gradient(100);
  values[3] = std::numeric_limits<float>::infinity();
  values[9] = std::numeric_limits<float>::quiet_NaN();
  for (const EncodeOptions& options :
       std::vector<EncodeOptions>{{.kind = kUniform},
                                  {.kind = kFloat},
                                  {.kind = kPruned, .survivors = Survivors::kFloat},
                                  {.kind = kPruned, .survivors = Survivors::kBFloat16}}) {
    try {
      encode(view(values, DType::kFloat32), options);
      FAIL();
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("got 2 that are not"));
    }
  }
}

TEST(PayloadKinds, SubnormalsZerosAndHugeValuesSurviveQuantizing) {
  const std::vector<std::vector<float>> tensors = {
      std::vector<float>(300, 0.0f), std::vector<float>(300, 1e-42f),
      std::vector<float>(300, std::numeric_limits<float>::max()), std::vector<float>(300, -1.0f)};
  for (const auto& values : tensors)
    for (const EncodeOptions& options : std::vector<EncodeOptions>{
             {.kind = kUniform},
             {.kind = kUniform, .model = TableModel::kGennorm},
             {.kind = kFloat},
             {.kind = kPruned},
             {.kind = kPruned, .survivors = Survivors::kBFloat16, .threshold = 0.5},
             {.kind = kPruned, .survivors = Survivors::kFloat, .threshold = 0.5}}) {
      const std::vector<float> back =
          floats_of(decode(encode(view(values, DType::kFloat32), options)));
      for (const float x : back)
        EXPECT_LE(std::abs(x - values[0]), 0.07f * std::abs(values[0]) + 1e-38f);
    }
}

}  // namespace
}  // namespace slimgrad
