// The k largest of every group of values: what is kept, what it becomes, and how many bytes it
// takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "arrays/coding/payload_samples.h"
#include "arrays/coding/topk_block.h"
#include "for_each_target.h"
#include "gennorm_sample.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

using testing::HasSubstr;

EncodeOptions topk(int k = 64, int of = 4096, int bits = 2) {
  return {.kind = PayloadKind::kTopk, .bits = bits, .k = k, .of = of};
}

// The plain format: 12 bits of place and the bits of a code for each value that is kept, and the
// codes' levels, one table for each block. Written down, and read back.
class PlainFormat {
 public:
  PlainFormat(std::span<const float> values, int k, int of, int bits) : num_values_(values.size()) {
    const auto group = static_cast<std::size_t>(of);
    for (std::size_t first = 0; first < values.size(); first += group) {
      const std::size_t size = std::min(group, values.size() - first);
      std::vector<std::size_t> places(size);
      std::iota(places.begin(), places.end(), first);
      std::ranges::stable_sort(
          places, [&](auto i, auto k) { return std::abs(values[i]) > std::abs(values[k]); });
      places.resize(static_cast<std::size_t>(
          std::ceil(static_cast<double>(k) * static_cast<double>(size) / of)));
      std::erase_if(places, [&](auto i) { return values[i] == 0; });
      std::ranges::sort(places);
      num_kept_.push_back(places.size());
      places_.insert(places_.end(), places.begin(), places.end());
    }
    // Bins are split at their means: the lower half of each keeps its number, as text.
    std::vector<std::string> names(places_.size());
    for (int split = 1; split < bits; ++split) {
      const auto means = means_of(names, values);
      for (std::size_t i = 0; i < names.size(); ++i)
        names[i] += std::abs(values[places_[i]]) > means.at(names[i]) ? '1' : '0';
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      names[i].insert(0, values[places_[i]] < 0 ? "1" : "0");
    levels_.resize(std::size_t{1} << bits);
    for (const auto& [name, mean] : means_of(names, values)) {
      const auto level = static_cast<float>(mean);
      levels_[std::stoul(name, nullptr, 2)] = name[0] == '1' ? -level : level;
    }
    for (const std::string& name : names) codes_.push_back(std::stoul(name, nullptr, 2));
    for (auto& place : places_) place %= group;  // what 12 bits can tell
    group_ = group;
  }

  std::vector<float> read() const {
    std::vector<float> values(num_values_);
    std::size_t i = 0;
    for (std::size_t group = 0; group < num_kept_.size(); ++group)
      for (std::size_t j = 0; j < num_kept_[group]; ++j, ++i)
        values[group * group_ + places_[i]] = levels_[codes_[i]];
    return values;
  }

  std::size_t num_kept() const { return places_.size(); }

 private:
  std::map<std::string, double> means_of(const std::vector<std::string>& names,
                                         std::span<const float> values) const {
    std::map<std::string, std::pair<double, double>> sums;
    for (std::size_t i = 0; i < names.size(); ++i) {
      sums[names[i]].first += std::abs(double{values[places_[i]]});
      sums[names[i]].second += 1;
    }
    std::map<std::string, double> means;
    for (const auto& [name, sum] : sums) means[name] = sum.first / sum.second;
    return means;
  }

  std::size_t num_values_, group_ = 0;
  std::vector<std::size_t> num_kept_, places_, codes_;
  std::vector<float> levels_;
};

std::vector<float> plain(const std::vector<float>& values, int k, int of, int bits) {
  std::vector<float> back;
  constexpr std::size_t kBlock = std::size_t{1} << 18;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const auto block = std::span(values).subspan(first, std::min(kBlock, values.size() - first));
    const std::vector<float> part = PlainFormat(block, k, of, bits).read();
    back.insert(back.end(), part.begin(), part.end());
  }
  return back;
}

TEST(Topk, DecodesToWhatThePlainFormatHas) {
  for (const std::size_t n : {1u, 100u, 4096u, 70'000u, 300'000u})
    for (const auto [k, of, bits] : {std::tuple(64, 4096, 2), std::tuple(1, 16, 1),
                                     std::tuple(5, 64, 4), std::tuple(4096, 4096, 3)}) {
      std::vector<float> values = generated_sample(0.7, 1e-3, n, n + 1);
      for (std::size_t i = 0; i < n / 3; i += 2) values[i] = 0;
      const Bytes payload = encode(view(values, DType::kFloat32), topk(k, of, bits));
      ASSERT_EQ(floats_of(decode(payload)), plain(values, k, of, bits))
          << n << ": " << k << " of " << of << ", " << bits;
      if (n > 100) {
        const PayloadInfo info = inspect(payload);
        EXPECT_EQ(std::tuple(info.kind, info.k, info.of, info.bits),
                  std::tuple(PayloadKind::kTopk, k, of, bits));
      }
    }
}

// log2 of the number of ways to choose k of n.
double log2_ways(double n, double k) {
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2);
}

TEST(Topk, TakesLittleMoreThanTheEntropy) {
  const double per_group = log2_ways(4096, 64);
  EXPECT_NEAR(per_group / 64, 7.36, 0.01);
  for (const std::size_t n : {std::size_t{1} << 17, std::size_t{1} << 18, std::size_t{1} << 20})
    for (const double shape : {0.5, 1.0, 2.0})
      for (const int bits : {1, 2, 3}) {
        const std::vector<float> values = generated_sample(shape, 1e-3, n, n + 3);
        const auto size =
            static_cast<double>(encode(view(values, DType::kFloat32), topk(64, 4096, bits)).size());
        const double entropy = static_cast<double>(n) / 4096 * (per_group + 64 * bits) / 8;
        EXPECT_LT(size / entropy, n < std::size_t{1} << 18 ? 1.04 : 1.03)
            << n << ", shape " << shape << ", " << bits << " bits";
        EXPECT_GT(size / entropy, 1.0);
      }
  // Gaps are less nearly geometric where a group keeps one value, or half of all.
  for (const auto [k, of, most] :
       {std::tuple(16, 4096, 1.05), std::tuple(1, 16, 1.25), std::tuple(512, 1024, 1.2)}) {
    const std::vector<float> values = generated_sample(1.0, 1, std::size_t{1} << 20, 5);
    const auto size =
        static_cast<double>(encode(view(values, DType::kFloat32), topk(k, of)).size());
    const double entropy = 0x1p20 / of * (log2_ways(of, k) + 2.0 * k) / 8;
    EXPECT_LT(size / entropy, most) << k << " of " << of;
  }
}

TEST(Topk, IsTheSameOnEveryTargetAndForEveryNumberOfRanges) {
  const std::vector<float> values = generated_sample(0.5, 1e-3, 1'000'000, 6);
  const std::vector<BFloat16Bits> halves = to_bfloat16(values);
  const Bytes first = encode(view(values, DType::kFloat32), topk());
  const Bytes half = encode(view(halves, DType::kBFloat16), topk());
  for_each_target([&](const char* name) {
    EXPECT_EQ(encode(view(values, DType::kFloat32), topk()), first) << name;
    EXPECT_EQ(encode(view(halves, DType::kBFloat16), topk()), half) << name;
    EXPECT_EQ(decode(half).size(), 2 * halves.size()) << name;
  });
  PayloadEncoder encoder(view(values, DType::kFloat32), topk());
  for (std::size_t i = encoder.num_blocks(); i-- > 0;) encoder.run(i, i + 1);
  Bytes payload(encoder.finish());
  encoder.write(payload);
  EXPECT_EQ(payload, first);
}

template <typename T>
void expect_replaced_and_added(std::vector<T> values, DType dtype) {
  const Bytes payload = encode(view(values, dtype), topk(8, 256, 3));
  const Bytes back = decode(payload);
  std::vector<float> sums(values.size(), 0.25f), wanted = sums;
  std::vector<T> decoded(values.size());
  std::memcpy(static_cast<void*>(decoded.data()), back.data(), back.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += kernels::to_float(decoded[i]);
  const PayloadDecoder decoder(payload);
  decoder.add(0, decoder.num_blocks(), sums);
  EXPECT_EQ(sums, wanted);
  EncodeOptions options = topk(8, 256, 3);
  options.replaced = {reinterpret_cast<std::uint8_t*>(values.data()), values.size() * sizeof(T)};
  EXPECT_EQ(encode(view(values, dtype), options), payload);
  EXPECT_EQ(bytes_of_values(values), back);
}

TEST(Topk, ReplacesAndAddsWhatAReaderGets) {
  const std::vector<float> values = generated_sample(0.8, 1e-3, 300'001, 7);
  expect_replaced_and_added(values, DType::kFloat32);
  expect_replaced_and_added(to_bfloat16(values), DType::kBFloat16);
  std::vector<Float16Bits> halves;
  for (const float x : values) halves.push_back(kernels::from_float<Float16Bits>(x));
  expect_replaced_and_added(halves, DType::kFloat16);
}

TEST(Topk, KeepsTheSmallestAndTheLargestNumbers) {
  std::vector<float> values(5000);
  values[3] = 0x1p-149f;
  values[4100] = -0x1p-149f;
  EXPECT_EQ(floats_of(decode(encode(view(values, DType::kFloat32), topk()))), values);
  values[3] = std::numeric_limits<float>::max();
  values[4100] = -values[3];
  EXPECT_EQ(floats_of(decode(encode(view(values, DType::kFloat32), topk()))), values);
  std::vector<Float16Bits> halves(5000);
  halves[7].bits = 0x7bff;
  halves[8].bits = 0x8001;
  EXPECT_EQ(decode(encode(view(halves, DType::kFloat16), topk())), bytes_of_values(halves));
}

TEST(Topk, RefusesWhatItHasNoCodesFor) {
  std::vector<float> values = generated_sample(1.0, 1, 10'000, 8);
  for (const auto [k, of, bits, text] :
       {std::tuple(0, 4096, 2, "k from 1 to of, which is 4096"),
        std::tuple(65, 64, 2, "k from 1 to of, which is 64"),
        std::tuple(1, 100, 2, "of to be a power of two from 16 to 4096"),
        std::tuple(1, 8192, 2, "of to be a power of two from 16 to 4096"),
        std::tuple(1, 8, 2, "of to be a power of two from 16 to 4096"),
        std::tuple(1, 64, 0, "1 to 4 bits"), std::tuple(1, 64, 8, "1 to 4 bits")})
    try {
      encode(view(values, DType::kFloat32), topk(k, of, bits));
      ADD_FAILURE() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  values[77] = std::nanf("");
  EXPECT_THROW(encode(view(values, DType::kFloat32), topk()), InvalidArgument);
  EncodeOptions options = topk();
  options.exact_if_nonfinite = true;
  EXPECT_EQ(decode(encode(view(values, DType::kFloat32), options)), bytes_of_values(values));
  EXPECT_THROW(encode({values.data(), DType::kInt8, {100}}, topk()), InvalidArgument);
}

// With a right checksum: what no writer writes is refused where it can be told.
TEST(Topk, RefusesBlocksThatNoWriterWrites) {
  const std::vector<float> values = generated_sample(1.0, 1, 5000, 9);
  const TopkRule rule = {64, 4096, 2};
  TopkBlockEncoder encoder;
  Bytes block(topk_block_bound(rule, values.size()));
  std::uint8_t* end = block.data();
  encoder.put(std::span<const float>(values), rule, end);
  block.resize(static_cast<std::size_t>(end - block.data()));
  const auto status = [&](const Bytes& bytes, TopkRule of_reader) {
    const std::uint32_t largest = kernels::float_bits(std::numeric_limits<float>::max());
    return TopkBlockDecoder(bytes, of_reader, values.size(), largest).visit([](auto, auto) {});
  };
  EXPECT_EQ(status(block, rule), DecodeStatus::kOk);
  EXPECT_EQ(status(block, {63, 4096, 2}), DecodeStatus::kBadFinalState);  // one too many
  for (std::size_t size = 0; size < block.size(); ++size)
    EXPECT_NE(status(Bytes(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size)), rule),
              DecodeStatus::kOk)
        << size;
  const auto changed = [&](std::size_t at, int value) {
    Bytes other = block;
    other[at] = static_cast<std::uint8_t>(value);
    return status(other, rule);
  };
  EXPECT_EQ(changed(0, block[0] + 1), DecodeStatus::kTruncated);      // more values than gaps
  EXPECT_EQ(changed(0, block[0] - 1), DecodeStatus::kTrailingBytes);  // and fewer
  Bytes other = block;
  other[4] = other[5] = 0;  // m
  EXPECT_EQ(status(other, rule), DecodeStatus::kBadTable);
  EXPECT_EQ(changed(5, 0x81), DecodeStatus::kBadTable);
  other = block;
  other[8] = 0x80;
  other[9] = 0x7f;  // a level that is Inf
  EXPECT_EQ(status(other, rule), DecodeStatus::kBadTable);
  other = block;
  other.push_back(0);
  EXPECT_EQ(status(other, rule), DecodeStatus::kTrailingBytes);
  EXPECT_EQ(status({0, 0, 0, 0}, rule), DecodeStatus::kOk);  // nothing is kept
}

}  // namespace
}  // namespace slimgrad
