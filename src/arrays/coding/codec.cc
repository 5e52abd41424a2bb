#include <slimgrad/codec.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace slimgrad {
namespace {

// The best splits for magnitudes whose log2 has a standard deviation of 1 to 5, as gradients' has:
// best_format(bits, (1, 5)).
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFormats = {
    {{"fp8", "1-5-2"}, {"fp6", "1-4-1"}, {"fp4", "1-3-0"}}};

constexpr int kMostBits = 8, kFewestUniformBits = 2, kFewestPackedBits = 4;

}  // namespace

std::vector<std::string> Codec::names() {
  std::vector<std::string> names = {"lossless"};
  for (const auto& [name, format] : kFormats) names.emplace_back(name);
  for (int bits = kMostBits; bits >= kFewestUniformBits; --bits)
    names.push_back("uniform" + std::to_string(bits));
  for (int bits = kMostBits; bits >= kFewestPackedBits; --bits)
    names.push_back("packed" + std::to_string(bits));
  names.emplace_back("pruned");
  return names;
}

Codec Codec::parse(std::string_view name) {
  const std::vector<std::string> known = names();
  if (std::ranges::find(known, name) == known.end()) {
    std::string expected = "one of";
    for (const std::string& one : known) expected += (expected.back() == 'f' ? " " : ", ") + one;
    throw_invalid("Codec", expected, "\"", name, "\"");
  }
  Codec codec;
  for (const auto& [format_name, format] : kFormats) {
    if (name != format_name) continue;
    codec.kind = PayloadKind::kFloat;
    codec.format = FloatFormat::parse(format);
    return codec;
  }
  if (name == "lossless" || name == "pruned") {
    codec.kind = parse_payload_kind(name);
    return codec;
  }
  codec.bits = name.back() - '0';
  if (name.starts_with("packed")) codec.coder = EntropyCoder::kNone;
  return codec;
}

std::string Codec::name() const {
  switch (kind) {
    case PayloadKind::kUniform:
      return (coder == EntropyCoder::kNone ? "packed" : "uniform") + std::to_string(bits);
    case PayloadKind::kFloat: {
      const std::string text = format.name();
      for (const auto& [format_name, known] : kFormats)
        if (text == known) return std::string(format_name);
      return "float " + text;
    }
    default:
      return std::string(payload_kind_name(kind));
  }
}

void Codec::check() const {
  const auto expect = [](bool holds, std::string_view expected, const auto&... got) {
    slimgrad::check(holds, "Codec", expected, got...);
  };
  expect(kind != PayloadKind::kRaw, "kind to be one of lossless, uniform, float, pruned", "raw");
  expect(bits >= kFewestUniformBits && bits <= kMostBits, "2 to 8 bits", bits);
  expect(model == TableModel::kCounted || kind == PayloadKind::kUniform,
         "model counted for all kinds but uniform", table_model_name(model));
  const bool has_plain_codes = (kind == PayloadKind::kUniform || kind == PayloadKind::kFloat) &&
                               model == TableModel::kCounted;
  expect(coder != EntropyCoder::kNone || has_plain_codes,
         "a coder for all but uniform and float codes with counted tables",
         entropy_coder_name(coder));
  expect(sparsity >= 0 && sparsity < 1, "sparsity in [0, 1)", sparsity);
  expect(block_log2 >= 12 && block_log2 <= 20, "block_log2 from 12 to 20", block_log2);
  expect(!(error_feedback && kind == PayloadKind::kPruned),
         "error_feedback=False with pruning, whose noise is larger than the gradient and would "
         "grow if it was fed back",
         "True");
  expect(rounding_in_force() == Rounding::kStochastic || error_feedback || is_exact(),
         "error_feedback=True with rounding='nearest', as gradients that are rounded to the "
         "nearest value are biased and small ones vanish for good",
         "False");
  expect(min_elements >= 0, "min_elements to be a whole number of at least 0", min_elements);
}

}  // namespace slimgrad
