// What payloads can do for ranks that exchange them: add what they hold to sums, leave the sender
// what a reader gets, code what has no code exactly, and do without a coder.
#include <slimgrad/payload.h>

#include <gtest/gtest.h>

#include <limits>

#include "arrays/coding/payload_samples.h"

namespace slimgrad {
namespace {

using enum PayloadKind;

TEST(WireOptions, AddingIsDecodingAndAdding) {
  for (const std::size_t n : {1u, 5000u, 300'000u})
    for (const auto& [name, payload] : payloads_of_every_kind(n)) {
      const PayloadDecoder decoder(payload);
      const PayloadInfo& info = decoder.info();
      if (info.dtype != DType::kFloat32) continue;
      const std::vector<float> values = floats_of(decode(payload));
      std::vector<float> sums(values.size(), 0.5f);
      decoder.add(0, decoder.num_blocks(), sums);
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(sums[i]),
                  std::bit_cast<std::uint32_t>(0.5f + values[i]))
            << name;
    }
}

TEST(WireOptions, AddsHalvesToFloats) {
  const std::vector<BFloat16Bits> halves = to_bfloat16(gradient(10'000));
  for (const PayloadKind kind : {kLossless, kUniform}) {
    const Bytes payload = encode(view(halves, DType::kBFloat16), {.kind = kind});
    const Bytes bytes = decode(payload);
    std::vector<float> sums(halves.size(), 0.0f);
    const PayloadDecoder decoder(payload);
    decoder.add(0, decoder.num_blocks(), sums);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      ASSERT_EQ(sums[i], std::bit_cast<float>(std::uint32_t{bits} << 16));
    }
  }
}

TEST(WireOptions, AddRefusesWhatItCannotAdd) {
  const std::vector<double> doubles(10, 1.0);
  const Bytes payload = encode(view(doubles, DType::kFloat64));
  const PayloadDecoder decoder(payload);
  std::vector<float> sums(10);
  EXPECT_THROW(decoder.add(0, 1, sums), InvalidArgument);
  const std::vector<float> values(10, 1.0f);
  const Bytes floats = encode(view(values, DType::kFloat32));
  sums.resize(9);
  EXPECT_THROW(PayloadDecoder(floats).add(0, 1, sums), InvalidArgument);
}

TEST(WireOptions, TheSenderIsLeftWithWhatAReaderGets) {
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kNone})
    for (const PayloadKind kind : {kUniform, kFloat})
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic})
        for (const std::size_t n : {1u, 3u, 5000u, 300'000u}) {
          const std::vector<float> values = gradient(n);
          EncodeOptions options = {.kind = kind, .coder = coder, .rounding = rounding, .seed = 4};
          const Bytes expected = decode(encode(view(values, DType::kFloat32), options));
          std::vector<float> replaced = values;
          options.replaced = {reinterpret_cast<std::uint8_t*>(replaced.data()), 4 * n};
          const Bytes payload = encode(view(replaced, DType::kFloat32), options);
          EXPECT_EQ(bytes_of_values(replaced), decode(payload));
          if (n > 3) {
            EXPECT_EQ(decode(payload), expected);
          }
        }
}

TEST(WireOptions, OnlyTheTensorsOwnMemoryIsReplaced) {
  std::vector<float> values = gradient(100), other = values;
  auto* const bytes = reinterpret_cast<std::uint8_t*>(values.data());
  for (const std::span<std::uint8_t> wrong :
       {std::span(bytes, 396), std::span(bytes + 4, 400),
        std::span(reinterpret_cast<std::uint8_t*>(other.data()), 400)})
    EXPECT_THROW(encode(view(values, DType::kFloat32), {.kind = kUniform, .replaced = wrong}),
                 InvalidArgument);
}

TEST(WireOptions, WhatHasNoCodeIsCodedExactly) {
  std::vector<float> values = gradient(5000);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = -std::numeric_limits<float>::infinity();
  for (const PayloadKind kind : {kUniform, kFloat}) {
    EXPECT_THROW(encode(view(values, DType::kFloat32), {.kind = kind}), InvalidArgument);
    for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kNone}) {
      const Bytes payload = encode(view(values, DType::kFloat32),
                                   {.kind = kind, .coder = coder, .exact_if_nonfinite = true});
      EXPECT_EQ(decode(payload), bytes_of_values(values));
    }
  }
}

TEST(WireOptions, WithoutACoderCodesHaveTheirBits) {
  const std::vector<float> values = gradient(100'000);
  for (int bits = 2; bits <= 8; ++bits) {
    EncodeOptions options = {.kind = kUniform, .bits = bits};
    const Bytes coded = encode(view(values, DType::kFloat32), options);
    options.coder = EntropyCoder::kNone;
    const Bytes packed = encode(view(values, DType::kFloat32), options);
    EXPECT_EQ(decode(packed), decode(coded));
    EXPECT_NEAR(static_cast<double>(packed.size()), 100'000.0 * bits / 8, 50);
  }
  for (const PayloadKind kind : {kLossless, kPruned})
    EXPECT_THROW(
        encode(view(values, DType::kFloat32), {.kind = kind, .coder = EntropyCoder::kNone}),
        InvalidArgument);
  EXPECT_THROW(
      encode(view(values, DType::kFloat32),
             {.kind = kUniform, .coder = EntropyCoder::kNone, .model = TableModel::kGennorm}),
      InvalidArgument);
}

// The law changes the code's length, not the values.
TEST(WireOptions, AFewThousandValuesFitNearlyAsWellAsAll) {
  const std::vector<float> values = gradient(400'000);
  EncodeOptions options = {.kind = kUniform, .bits = 6, .model = TableModel::kGennorm};
  const Bytes whole = encode(view(values, DType::kFloat32), options);
  options.fit_sample = 8192;
  const Bytes sampled = encode(view(values, DType::kFloat32), options);
  EXPECT_EQ(decode(sampled), decode(whole));
  EXPECT_LT(static_cast<double>(sampled.size()), 1.02 * static_cast<double>(whole.size()));
}

}  // namespace
}  // namespace slimgrad
