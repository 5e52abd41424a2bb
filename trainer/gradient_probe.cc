#include "trainer/gradient_probe.h"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include <slimgrad/error.h>
#include <slimgrad/measure.h>
#include <slimgrad/payload.h>

#include <slimgrad/seed.h>

namespace slimgrad::trainer {
namespace {

std::vector<float> sample_of(std::span<const float> values) {
  if (values.size() <= kFitSample) return {values.begin(), values.end()};
  std::vector<float> sample(kFitSample);
  for (std::size_t i = 0; i < sample.size(); ++i) sample[i] = values[mix_bits(i) % values.size()];
  return sample;
}

// The entropy of the integers value / scale, for decoded values.
double entropy_of(std::span<const float> values, double scale) {
  constexpr int kHalf = 127;
  std::array<std::uint64_t, 2 * kHalf + 1> counts{};
  for (const float value : values)
    ++counts.at(static_cast<std::size_t>(std::lround(value / scale) + kHalf));
  double entropy = 0;
  const auto total = static_cast<double>(values.size());
  for (const std::uint64_t count : counts)
    if (count > 0) {
      const double share = static_cast<double>(count) / total;
      entropy -= share * std::log2(share);
    }
  return entropy;
}

}  // namespace

std::vector<FamilyFit> fit_families(std::span<const float> gradient) {
  std::vector<FamilyFit> fits;
  try {
    const Sample sample(sample_of(gradient));
    for (const Family family : kAllFamilies) {
      try {
        const Distribution law = fit(sample, family);
        fits.push_back({law, ks_distance(sample, law)});
      } catch (const InvalidArgument&) {  // all magnitudes are equal
      }
    }
  } catch (const InvalidArgument&) {  // nothing but zeros
  }
  return fits;
}

CodeSizes code_sizes(std::span<const float> gradient, int quantizer_bits) {
  CodeSizes sizes{.quantizer_bits = quantizer_bits, .entropy = 0, .codes = {}};
  for (const float value : gradient)
    if (!std::isfinite(value)) return sizes;
  if (gradient.empty()) return sizes;
  const TensorView view{.data = gradient.data(), .shape = {gradient.size()}};
  for (const auto& [coder, name] :
       {std::pair(EntropyCoder::kRans, "rans"), std::pair(EntropyCoder::kHuffman, "huffman")})
    for (const TableModel model :
         {TableModel::kCounted, TableModel::kNormal, TableModel::kLaplace, TableModel::kGennorm}) {
      const std::vector<std::uint8_t> payload = encode(
          view,
          {.kind = PayloadKind::kUniform, .coder = coder, .bits = quantizer_bits, .model = model});
      const PayloadInfo info = inspect(payload);
      if (sizes.codes.empty() && info.kind == PayloadKind::kUniform) {
        std::vector<float> levels(gradient.size());
        const std::vector<std::uint8_t> decoded = decode(payload);
        std::memcpy(levels.data(), decoded.data(), decoded.size());
        sizes.entropy = entropy_of(levels, info.scale);
      }
      sizes.codes.push_back(
          {name, model,
           8 * static_cast<double>(payload.size()) / static_cast<double>(gradient.size())});
    }
  return sizes;
}

}  // namespace slimgrad::trainer
