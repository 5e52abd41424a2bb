#include <slimgrad/payload.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "arrays/coding/payload_samples.h"
#include "arrays/coding/symbols.h"
#include "kernels/dispatch.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

using enum PayloadKind;

// All words of 16 bits, and a good mixture of those of 32 and 64, with every exponent, NaN, Inf,
// -0.
template <typename Word>
std::vector<Word> every_kind_of_word() {
  std::vector<Word> words;
  for (std::uint32_t i = 0; i < 65536; ++i)
    words.push_back(
        static_cast<Word>(static_cast<Word>(i) << (8 * sizeof(Word) - 16) | (i * 7 & 0xffu)));
  return words;
}

template <typename Word>
void expect_exact(const std::vector<Word>& words, DType dtype, EntropyCoder coder) {
  const Bytes payload = encode(view(words, dtype), {.coder = coder});
  EXPECT_LE(payload.size(), words.size() * sizeof(Word) + 64);
  EXPECT_EQ(decode(payload), bytes_of_values(words)) << dtype_name(dtype);
  const PayloadInfo info = inspect(payload);
  EXPECT_EQ(info.dtype, dtype);
  EXPECT_EQ(info.shape, std::vector<std::uint64_t>{words.size()});
  EXPECT_EQ(info.payload_bytes, payload.size());
}

TEST(Payload, LosslessGivesBackEveryBit) {
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    expect_exact(every_kind_of_word<std::uint32_t>(), DType::kFloat32, coder);
    expect_exact(every_kind_of_word<std::uint16_t>(), DType::kBFloat16, coder);
    expect_exact(every_kind_of_word<std::uint16_t>(), DType::kFloat16, coder);
    expect_exact(every_kind_of_word<std::uint64_t>(), DType::kFloat64, coder);
    std::vector<std::uint8_t> bytes(10000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i);
    expect_exact(bytes, DType::kInt8, coder);
    expect_exact(gradient(700'001), DType::kFloat32, coder);
  }
}

TEST(Payload, ShapesAndSmallTensors) {
  const std::vector<float> values = gradient(24);
  for (const std::vector<std::uint64_t>& shape : std::vector<std::vector<std::uint64_t>>{
           {}, {1}, {24}, {2, 3, 4}, {0}, {3, 0, 2}, std::vector<std::uint64_t>(32, 1)}) {
    for (const PayloadKind kind : {kLossless, kUniform, kFloat, kPruned}) {
      const Bytes payload = encode({values.data(), DType::kFloat32, shape}, {.kind = kind});
      const PayloadInfo info = inspect(payload);
      EXPECT_EQ(info.shape, shape);
      EXPECT_LE(payload.size(), info.num_bytes() + 64);
      EXPECT_EQ(decode(payload).size(), info.num_bytes());
    }
  }
}

TEST(Payload, TheOrderOfTheValuesTravels) {
  const std::vector<float> values = gradient(6000);
  for (const std::vector<std::uint64_t>& shape :
       std::vector<std::vector<std::uint64_t>>{{20, 300}, {6000}}) {
    const Bytes payload = encode({values.data(), DType::kFloat32, shape, true});
    EXPECT_EQ(inspect(payload).shape, shape);
    EXPECT_EQ(inspect(payload).fortran_order, shape.size() > 1);  // one dimension has one order
    EXPECT_EQ(std::memcmp(decode(payload).data(), values.data(), 4 * values.size()), 0);
  }
}

TEST(Payload, NeverMoreThan64BytesLonger) {
  for (std::size_t n = 1; n < 400; n += 7)
    for (const NamedPayload& sample : payloads_of_every_kind(n)) {
      const PayloadInfo info = inspect(sample.payload);
      EXPECT_LE(sample.payload.size(), info.num_bytes() + 64) << sample.name << ' ' << n;
      EXPECT_LE(sample.payload.size(), encode_bound({nullptr, info.dtype, info.shape}));
    }
}

TEST(Payload, GradientsComeOutAtTheEntropyOfTheirExponents) {
  const std::vector<float> values = gradient(1 << 18);
  Weights exponents = {};
  for (const float x : values) ++exponents[std::bit_cast<std::uint32_t>(x) >> 23 & 0xff];
  const double least = entropy_bits(exponents) / 8 + 3.0 * static_cast<double>(values.size());
  const Bytes payload = encode(view(values, DType::kFloat32));
  EXPECT_LT(static_cast<double>(payload.size()), 1.001 * least + 400);
}

// With zeros among them the mantissas must not cost more than those of the other values.
TEST(Payload, ZerosCostOnlyTheirPlaces) {
  std::vector<float> values = gradient(1 << 18);
  Weights exponents = {}, places = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i * 2654435761u % 100 < 30) values[i] = 0.0f;
    ++places[values[i] == 0 ? 0 : 1];
    if (values[i] != 0) ++exponents[std::bit_cast<std::uint32_t>(values[i]) >> 23 & 0xff];
  }
  values[17] = -0.0f;
  values[18] = std::numeric_limits<float>::quiet_NaN();
  const double least =
      (entropy_bits(exponents) + entropy_bits(places)) / 8 + 3.0 * static_cast<double>(places[1]);
  const Bytes payload = encode(view(values, DType::kFloat32));
  EXPECT_LT(static_cast<double>(payload.size()), 1.005 * least + 1000);
  EXPECT_EQ(decode(payload), bytes_of_values(values));
}

TEST(Payload, RefusesMisuse) {
  const std::vector<float> values = gradient(10);
  const std::vector<double> doubles(10);
  const TensorView floats = view(values, DType::kFloat32);
  EXPECT_THROW(encode(floats, {.kind = kRaw}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kUniform, .bits = 1}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kUniform, .bits = 9}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kUniform, .scale = -1}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kUniform, .scale = 1e-40}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kPruned, .threshold = -1}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.kind = kFloat, .model = TableModel::kNormal}), InvalidArgument);
  EXPECT_THROW(encode(floats, {.block_log2 = 11}), InvalidArgument);
  EXPECT_THROW(encode(view(doubles, DType::kFloat64), {.kind = kUniform}), InvalidArgument);
  EXPECT_THROW(encode({values.data(), DType::kFloat32, std::vector<std::uint64_t>(33, 1)}),
               InvalidArgument);
  EXPECT_THROW(encode({values.data(), DType::kFloat32, {1ull << 40, 1ull << 40}}), InvalidArgument);
  EXPECT_THROW(encode({nullptr, DType::kFloat32, {10}}), InvalidArgument);
  Bytes small(10);
  EXPECT_THROW(encode_into(floats, {}, small), InvalidArgument);
  EXPECT_THROW(decode_into(encode(floats), small), InvalidArgument);
}

TEST(Payload, BlocksInAnyOrderGiveTheSameBytes) {
  const std::vector<float> values = gradient(50'000);
  const EncodeOptions options = {.kind = kUniform, .block_log2 = 12};
  PayloadEncoder encoder(view(values, DType::kFloat32), options);
  for (std::size_t i = encoder.num_blocks(); i-- > 0;) encoder.run(i, i + 1);
  Bytes payload(encoder.finish());
  encoder.write(payload);
  EXPECT_EQ(payload, encode(view(values, DType::kFloat32), options));
  const PayloadDecoder decoder(payload);
  Bytes back(decoder.info().num_bytes());
  for (std::size_t i = decoder.num_blocks(); i-- > 0;) decoder.run(i, i + 1, back);
  EXPECT_EQ(back, decode(payload));
}

// Whatever the room: blocks that do not fit have memory of their own, and blocks that grew push the
// others on. Noise first, so that the first blocks are longer than their values.
TEST(Payload, BlocksCodedInPlaceGiveTheSameBytes) {
  constexpr std::size_t num_noise = 20'000;
  std::mt19937_64 random(1);
  Bytes values(60'000, 7);
  for (std::size_t i = 0; i < num_noise; ++i) values[i] = static_cast<std::uint8_t>(random());
  const EncodeOptions options = {.block_log2 = 12};
  const TensorView tensor = view(values, DType::kInt8);
  const Bytes expected = encode(tensor, options);
  ASSERT_LT(expected.size(), values.size());
  ASSERT_GT(expected.size(), num_noise);
  for (const std::size_t room : {expected.size(), expected.size() + 1, num_noise + 4096,
                                 static_cast<std::size_t>(encode_bound(tensor))}) {
    Bytes out(room);
    EXPECT_EQ(encode_into(tensor, options, out), expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin())) << room;
    for (const std::size_t blocks_a_run : {1, 3, 7}) {
      PayloadEncoder encoder(tensor, options, out);
      const std::size_t num_blocks = encoder.num_blocks();
      for (std::size_t i = 0; i < num_blocks; i += blocks_a_run)
        encoder.run(i, std::min(i + blocks_a_run, num_blocks));
      encoder.write(std::span(out).first(encoder.finish()));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin())) << room;
    }
  }
}

TEST(Payload, EveryCpuTargetWritesTheSameBytesAndReadsThem) {
  kernels::select_kernel_set("scalar");
  const std::vector<NamedPayload> expected = payloads_of_every_kind(70'001);
  std::vector<Bytes> values;
  for (const NamedPayload& sample : expected) values.push_back(decode(sample.payload));
  for (const std::string& set : kernels::kernel_sets()) {
    kernels::select_kernel_set(set);
    const std::vector<NamedPayload> again = payloads_of_every_kind(70'001);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(again[i].payload, expected[i].payload) << set << ' ' << expected[i].name;
      EXPECT_EQ(decode(expected[i].payload), values[i]) << set << ' ' << expected[i].name;
    }
  }
  kernels::select_kernel_set("best");
}

}  // namespace
}  // namespace slimgrad
