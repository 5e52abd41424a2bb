// Uniform payloads with a rate, or with a largest error, instead of bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "arrays/coding/payload_samples.h"
#include "for_each_target.h"
#include "gennorm_sample.h"

namespace slimgrad {
namespace {

using enum PayloadKind;
using testing::HasSubstr;

EncodeOptions at_rate(double rate, Rounding rounding = Rounding::kStochastic,
                      TableModel model = TableModel::kCounted) {
  return {.kind = kUniform, .rate = rate, .model = model, .rounding = rounding, .seed = 5};
}

double tolerance(std::size_t n) { return n >= std::size_t{1} << 18 ? 0.02 : 0.05; }

void expect_rate(const TensorView& tensor, const EncodeOptions& options, const std::string& what) {
  const PayloadInfo info = inspect(encode(tensor, options));
  EXPECT_NEAR(info.bits_per_value() / options.rate, 1, tolerance(info.num_values()))
      << what << ' ' << options.rate;
  EXPECT_TRUE(info.rate_reached()) << what << ' ' << options.rate;
  EXPECT_EQ(info.rate, static_cast<float>(options.rate));
  EXPECT_EQ(info.kind, kUniform);
  EXPECT_EQ(info.bits, 0);
}

TEST(Rate, PayloadsOfGennormsHaveIt) {
  for (const std::size_t n : {std::size_t{1} << 14, std::size_t{1} << 18, std::size_t{600'000}})
    for (const double shape : {0.3, 0.5, 1.0, 2.0}) {
      const std::vector<float> values = generated_sample(shape, 1e-4, n, n + 1);
      const std::string what = "shape " + std::to_string(shape) + " of " + std::to_string(n);
      for (const double rate : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0})
        expect_rate(view(values, DType::kFloat32), at_rate(rate), what);
    }
}

TEST(Rate, OtherRoundingsTypesAndTablesHaveItToo) {
  const std::vector<float> values = generated_sample(0.7, 1e-4, 1 << 18, 3);
  const std::vector<BFloat16Bits> halves = to_bfloat16(values);
  for (const double rate : {1.0, 2.0, 4.0, 8.0}) {
    expect_rate(view(values, DType::kFloat32), at_rate(rate, Rounding::kNearest), "nearest");
    expect_rate(view(halves, DType::kBFloat16), at_rate(rate), "bfloat16");
    for (const TableModel model : {TableModel::kGennorm, TableModel::kLaplace})
      expect_rate(view(values, DType::kFloat32), at_rate(rate, Rounding::kStochastic, model),
                  std::string(table_model_name(model)));
  }
}

// Every block has a table of its own, and rows and columns may differ by orders of magnitude.
TEST(Rate, TensorsWhoseScaleChangesHaveIt) {
  const std::size_t n = std::size_t{1} << 20;
  for (const std::string pattern : {"halves", "blocks", "rows", "columns", "positive", "zeros"}) {
    std::vector<float> values = generated_sample(0.8, 1e-4, n, 4);
    for (std::size_t i = 0; i < n; ++i) {
      float& x = values[i];
      if (pattern == "halves" && i < n / 2) x *= 1e-3f;
      if (pattern == "blocks" && (i >> 18) % 2 == 0) x *= 1e-2f;
      if (pattern == "rows" && i / 512 % 4 == 0) x *= 100;
      if (pattern == "columns" && i % 512 < 64) x *= 100;
      if (pattern == "positive") x = std::abs(x);
      if (pattern == "zeros" && i % 16 < 12) x = 0;
    }
    for (const double rate : {1.0, 2.0, 4.0}) {
      if (pattern == "zeros" && rate == 4.0) continue;
      expect_rate(view(values, DType::kFloat32), at_rate(rate), pattern);
    }
  }
}

TEST(Rate, WhatHasNoSuchPayloadSaysSo) {
  const std::vector<float> zeros(100'000), equal(100'000, 0.3f), few = gradient(50);
  for (const auto* values : {&zeros, &equal, &few}) {
    const Bytes payload = encode(view(*values, DType::kFloat32), at_rate(2));
    const PayloadInfo info = inspect(payload);
    EXPECT_EQ(info.rate, 2.0f);
    EXPECT_FALSE(info.rate_reached());
    EXPECT_EQ(floats_of(decode(payload)).size(), values->size());
  }
  EXPECT_EQ(floats_of(decode(encode(view(zeros, DType::kFloat32), at_rate(2)))), zeros);
  // Tables take half of the rate at most, so that the rest is not noise alone.
  const std::vector<float> small = generated_sample(1.0, 1.0, 1000, 2);
  const PayloadInfo info = inspect(encode(view(small, DType::kFloat32), at_rate(2)));
  EXPECT_LT(info.scale, 6.0f);
}

TEST(Rate, MaxErrorHolds) {
  const std::vector<float> values = generated_sample(0.5, 1e-2, 50'000, 8);
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic})
    for (const double error : {1e-1, 1e-3, 1e-5, 1e-9}) {
      const EncodeOptions options = {
          .kind = kUniform, .max_error = error, .rounding = rounding, .seed = 2};
      const Bytes payload = encode(view(values, DType::kFloat32), options);
      const PayloadInfo info = inspect(payload);
      EXPECT_EQ(info.rate, 0.0f);
      EXPECT_EQ(info.kind == kLossless, error == 1e-9);
      const std::vector<float> back = floats_of(decode(payload));
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_LE(std::abs(double{back[i]} - values[i]), error + 0x1p-23 * std::abs(values[i]));
    }
}

// Levels with extra bits, too: every value comes back right on average.
TEST(Rate, StochasticRoundingIsUnbiased) {
  const std::vector<float> kinds = {0.3f, -0.7f, 1.25f, 111.5f, -111.75f, 112.25f, 5000.5f, 0.0f};
  std::vector<float> values;
  for (int i = 0; i < 40'000; ++i) values.insert(values.end(), kinds.begin(), kinds.end());
  const Bytes payload =
      encode(view(values, DType::kFloat32),
             {.kind = kUniform, .max_error = 1, .rounding = Rounding::kStochastic, .seed = 9});
  ASSERT_EQ(inspect(payload).scale, 1.0f);
  const std::vector<float> back = floats_of(decode(payload));
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    double sum = 0;
    for (std::size_t i = k; i < back.size(); i += kinds.size()) {
      ASSERT_LT(std::abs(back[i] - values[i]), 1.0f);
      sum += back[i];
    }
    const double f = kinds[k] - std::floor(kinds[k]);
    EXPECT_NEAR(sum / 40'000, kinds[k], 5 * std::sqrt(f * (1 - f) / 40'000) + 1e-9);  // std errors
  }
}

TEST(Rate, ReplacedValuesAreThoseDecodedAndAddIsASum) {
  for (const double rate : {1.5, 8.0}) {
    std::vector<float> values = generated_sample(0.4, 1.0, 300'000, 6);
    const std::vector<float> before = values;
    EncodeOptions options = at_rate(rate);
    const Bytes plain = encode(view(before, DType::kFloat32), options);
    options.replaced = {reinterpret_cast<std::uint8_t*>(values.data()), 4 * values.size()};
    const Bytes payload = encode(view(values, DType::kFloat32), options);
    EXPECT_EQ(payload, plain);
    EXPECT_EQ(values, floats_of(decode(payload)));
    std::vector<float> sums(values.size(), 1.0f);
    const PayloadDecoder decoder(payload);
    decoder.add(0, decoder.num_blocks(), sums);
    for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], 1.0f + values[i]);
  }
}

TEST(Rate, BytesDoNotDependOnTargetsOrOnHowBlocksAreRun) {
  const std::vector<float> values = generated_sample(0.3, 1.0, 200'000, 6);
  for (const double rate : {1.0, 8.0}) {
    EncodeOptions options = at_rate(rate);
    options.block_log2 = 14;
    const Bytes expected = encode(view(values, DType::kFloat32), options);
    for_each_target([&](const char* target) {
      EXPECT_EQ(encode(view(values, DType::kFloat32), options), expected) << target;
    });
    PayloadEncoder encoder(view(values, DType::kFloat32), options);
    do {
      for (std::size_t i = encoder.num_blocks(); i-- > 0;) encoder.run(i, i + 1);
    } while (encoder.correct());
    Bytes payload(encoder.finish());
    encoder.write(payload);
    EXPECT_EQ(payload, expected);
  }
}

std::string refusal(const EncodeOptions& options) {
  try {
    encode(view(gradient(100), DType::kFloat32), options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Rate, MisuseIsRefused) {
  EXPECT_THAT(refusal({.kind = kUniform, .rate = -1}), HasSubstr("expected a rate above 0"));
  EXPECT_THAT(refusal({.kind = kUniform, .rate = 17}), HasSubstr("got 17"));
  EXPECT_THAT(refusal({.kind = kUniform, .rate = std::nan("")}), HasSubstr("a rate above 0"));
  EXPECT_THAT(refusal({.kind = kUniform, .max_error = -1}), HasSubstr("max_error to be positive"));
  EXPECT_THAT(refusal({.kind = kUniform, .max_error = INFINITY}), HasSubstr("finite"));
  EXPECT_THAT(refusal({.kind = kUniform, .rate = 2, .max_error = 1}), HasSubstr("got both"));
  EXPECT_THAT(refusal({.kind = kFloat, .rate = 2}), HasSubstr("mode uniform with rate"));
  EXPECT_THAT(refusal({.kind = kUniform, .rate = 2, .scale = 1}), HasSubstr("no scale"));
  EXPECT_THAT(refusal({.kind = kUniform, .coder = EntropyCoder::kHuffman, .rate = 2}),
              HasSubstr("coder rans with rate"));
}

}  // namespace
}  // namespace slimgrad
