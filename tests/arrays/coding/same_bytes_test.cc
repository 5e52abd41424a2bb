// The bytes that encode(), prune(), quantize() and pack() give are a function of values, options
// and seed alone: the same ones on every CPU, with every compiler and mathematical library. So
// golden/same_bytes.json has the hashes of all of them, and this test runs wherever the library
// does. The values are made of integers, because exp() is not the same everywhere.
//
// A change that is meant to change bytes changes the file; the test says what its lines must be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include <slimgrad/apply.h>

#include "arrays/coding/payload_samples.h"
#include "for_each_target.h"
#include "formats/value_types.h"
#include "golden.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

using Hashes = std::map<std::string, std::string>;

constexpr std::size_t kValues = 12'345;
constexpr int kBlockLog2 = 12;  // four blocks, the last of them not full

// Magnitudes with bell-shaped exponents around 2^-8, and a few zeros.
template <typename T>
std::vector<T> integer_made_gradient() {
  std::mt19937_64 random(5);
  std::vector<T> values(kValues);
  for (T& x : values) {
    const std::uint64_t bits = random();
    const auto exponent = static_cast<std::uint32_t>(std::popcount(bits & 0xffffu)) + 111;
    const auto mantissa = static_cast<std::uint32_t>(bits >> 16 & 0x7fffff);
    const auto sign = static_cast<std::uint32_t>(bits >> 63);
    const bool zero = (bits >> 40 & 31) == 0;
    x = kernels::from_float_bits<T>(zero ? 0 : sign << 31 | exponent << 23 | mantissa);
  }
  return values;
}

template <typename T>
std::string hash_of(const std::vector<T>& values) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(checksum(bytes_of_values(values))));
  return text;
}

// ---- payloads ----------------------------------------------------------------------------------

// The hashes of a payload and of what it decodes to.
void add(Hashes& found, const std::string& name, const TensorView& tensor, EncodeOptions options) {
  options.block_log2 = kBlockLog2;
  for (const EntropyCoder coder : {EntropyCoder::kRans, EntropyCoder::kHuffman}) {
    if (options.rate > 0 && coder == EntropyCoder::kHuffman) continue;
    options.coder = coder;
    const Bytes payload = encode(tensor, options);
    EXPECT_EQ(inspect(payload).kind, options.kind) << name << ": stored in another form";
    EXPECT_EQ(inspect(payload).model, options.model) << name << ": stored with another model";
    found[name + (coder == EntropyCoder::kRans ? " rans" : " huffman")] =
        hash_of(payload) + ' ' + hash_of(decode(payload));
  }
}

template <typename T>
void add_lossy(Hashes& found) {
  using enum PayloadKind;
  const std::vector<T> plain = integer_made_gradient<T>();
  std::vector<T> sparse(kValues);
  prune(plain, sparse, 0x1p-7, 11);
  const TensorView values = view(plain, kDType<T>), pruned = view(sparse, kDType<T>);
  const std::string type = ' ' + std::string(dtype_name(kDType<T>));
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    const std::string how = type + (rounding == Rounding::kNearest ? " nearest" : " stochastic");
    for (const TableModel model :
         {TableModel::kCounted, TableModel::kNormal, TableModel::kLaplace, TableModel::kGennorm})
      for (const int bits : {2, 5, 8})
        add(found,
            "uniform" + std::to_string(bits) + ' ' + std::string(table_model_name(model)) + how,
            values,
            {.kind = kUniform, .bits = bits, .model = model, .rounding = rounding, .seed = 3});
    for (const TableModel model : {TableModel::kCounted, TableModel::kGennorm})
      for (const double rate : {1.5, 9.0})
        add(found,
            "uniform rate " + std::to_string(rate).substr(0, 3) + ' ' +
                std::string(table_model_name(model)) + how,
            values,
            {.kind = kUniform, .rate = rate, .model = model, .rounding = rounding, .seed = 3});
    for (const FloatFormat& format : {FloatFormat(3, 0), FloatFormat(4, 3), FloatFormat(5, 2)}) {
      add(found, "float " + format.name() + how, values,
          {.kind = kFloat, .format = format, .rounding = rounding, .seed = 3});
      add(found, "pruned " + format.name() + how, pruned,
          {.kind = kPruned,
           .format = format,
           .rounding = rounding,
           .seed = 3,
           .survivors = Survivors::kFloat});
    }
  }
  add(found, "pruned exact" + type, pruned, {.kind = kPruned});
  if constexpr (std::is_same_v<T, float>)
    add(found, "pruned bfloat16" + type, pruned,
        {.kind = kPruned, .survivors = Survivors::kBFloat16});
}

Hashes payloads() {
  Hashes found;
  add_lossy<float>(found);
  add_lossy<BFloat16Bits>(found);
  add_lossy<Float16Bits>(found);
  std::vector<float> floats = integer_made_gradient<float>();
  const auto halves = integer_made_gradient<Float16Bits>();
  const auto brains = integer_made_gradient<BFloat16Bits>();
  std::replace(floats.begin(), floats.end(), 0.0f, 1.0f);  // else they are coded as pruned
  const std::vector<double> doubles(floats.begin(), floats.end());
  std::vector<std::int8_t> codes(kValues);
  for (std::size_t i = 0; i < kValues; ++i)
    codes[i] = static_cast<std::int8_t>(brains[i].bits >> 8 & 0x83);
  add(found, "lossless float32", view(floats, DType::kFloat32), {});
  add(found, "lossless float16", view(halves, DType::kFloat16), {});
  add(found, "lossless bfloat16", view(brains, DType::kBFloat16), {});
  add(found, "lossless float64", view(doubles, DType::kFloat64), {});
  add(found, "lossless int8", view(codes, DType::kInt8), {});
  return found;
}

// ---- random draws ------------------------------------------------------------------------------

template <typename T>
void add_draws(Hashes& found) {
  const std::vector<T> in = integer_made_gradient<T>();
  const std::string type = ' ' + std::string(dtype_name(kDType<T>));
  constexpr std::uint64_t kSeed = 0x123456789abcdef, kFirst = std::uint64_t{1} << 37;
  std::vector<T> out(in.size());
  prune(in, out, 0.01, kSeed, kFirst);
  found["prune" + type] = hash_of(out);
  for (const FloatFormat& format : {FloatFormat(2, 1), FloatFormat(4, 3), FloatFormat(5, 2)})
    for (const double scale : {0x1p-12, 0.001}) {
      const Quantizer quantizer{format, scale, Rounding::kStochastic, Underflow::kStochastic};
      const std::string where =
          ' ' + format.name() + (scale == 0.001 ? " at 0.001" : " at 2^-12") + type;
      quantize(in, out, quantizer, kSeed, kFirst);
      found["quantize" + where] = hash_of(out);
      prune_quantize(in, out, 0.01, quantizer, kSeed, kFirst);
      found["prune_quantize" + where] = hash_of(out);
      std::vector<std::uint8_t> packed(packed_size(format, in.size()));
      pack(in, packed, quantizer, kSeed, kFirst);
      found["pack" + where] = hash_of(packed);
    }
}

Hashes draws() {
  Hashes found;
  add_draws<float>(found);
  add_draws<BFloat16Bits>(found);
  add_draws<Float16Bits>(found);
  return found;
}

void expect_golden(const char* part, Hashes (*compute)()) {
  const nlohmann::json& expected = golden("same_bytes.json")[part];
  for_each_target([&](const char* target) {
    const Hashes found = compute();
    for (const auto& [name, hash] : found)
      EXPECT_EQ(expected.value(name, ""), hash)
          << target << ": \"" << name << "\": \"" << hash << '"';
    EXPECT_EQ(expected.size(), found.size());
  });
}

TEST(SameBytes, OfPayloadsOnEveryMachine) { expect_golden("payloads", payloads); }
TEST(SameBytes, OfRandomDrawsOnEveryMachine) { expect_golden("draws", draws); }

}  // namespace
}  // namespace slimgrad
