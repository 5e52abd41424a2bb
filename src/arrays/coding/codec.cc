#include <slimgrad/codec.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <slimgrad/format_choice.h>

#include "arrays/coding/topk_check.h"
#include "base/check.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

// What "fpN" is for codecs: the best split for magnitudes whose log2 has a standard deviation of 1
// to 5, as that of gradients. One for all, and not one for each piece: a reader knows the format
// before it reads.
FloatFormat split_for_gradients(int bits) {
  static const std::vector<FloatFormat> kSplits = [] {
    std::vector<FloatFormat> splits;
    for (int n = 2; n <= 8; ++n) splits.push_back(best_format(n, 1, 5));
    return splits;
  }();
  return kSplits[static_cast<std::size_t>(bits - 2)];
}

constexpr std::string_view kRate = "rate", kTopk = "topk";

// The number behind "rate"; nothing for other names.
std::optional<double> parse_rate(std::string_view name) {
  if (!name.starts_with(kRate)) return std::nullopt;
  const std::string_view digits = name.substr(kRate.size());
  double rate = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), rate, std::chars_format::fixed);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole ? std::optional(rate) : std::nullopt;
}

// The k behind "topk", 64 if there is none; nothing for other names.
std::optional<int> parse_k(std::string_view name) {
  if (!name.starts_with(kTopk)) return std::nullopt;
  int k = 64;
  const char* const end = name.data() + name.size();
  const char* const digits = name.data() + kTopk.size();
  if (digits == end) return k;
  const auto [rest, error] = std::from_chars(digits, end, k);
  return error == std::errc() && rest == end ? std::optional(k) : std::nullopt;
}

std::string rate_name(double rate) {
  std::array<char, 400> digits;  // enough for any number up to 16
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), rate, std::chars_format::fixed)
          .ptr;
  return std::string(kRate) + std::string(digits.data(), end);
}

void check_rate(double rate) {
  check(rate > 0 && rate <= kLargestRate, "Codec", "a rate above 0 and of at most 16 bits a value",
        rate);
}

constexpr int kMostBits = 8, kFewestBits = 2, kFewestPackedBits = 4;

}  // namespace

std::vector<std::string> Codec::names() {
  std::vector<std::string> names = {"lossless"};
  for (int bits = kMostBits; bits >= kFewestBits; --bits)
    names.push_back("fp" + std::to_string(bits));
  for (int bits = kMostBits; bits >= kFewestBits; --bits)
    names.push_back("uniform" + std::to_string(bits));
  for (int bits = kMostBits; bits >= kFewestPackedBits; --bits)
    names.push_back("packed" + std::to_string(bits));
  names.emplace_back("pruned");
  names.emplace_back(kTopk);
  for (const char* const rate : {"rate4", "rate3", "rate2", "rate1"}) names.emplace_back(rate);
  return names;
}

Codec Codec::parse(std::string_view name) {
  Codec codec;
  if (const auto choice = parse_float_choice(name)) {
    codec.kind = PayloadKind::kFloat;
    codec.format = choice->format ? *choice->format : split_for_gradients(choice->bits);
    return codec;
  }
  if (const auto rate = parse_rate(name)) {
    codec.rate = *rate;
    check_rate(codec.rate);
    return codec;
  }
  if (const auto k = parse_k(name)) {
    codec.kind = PayloadKind::kTopk;
    codec.bits = 2;
    codec.k = *k;
    codec.error_feedback = feeds_back_by_default(codec.kind);
    check_topk("Codec", codec.k, codec.of, codec.bits);
    return codec;
  }
  const std::vector<std::string> known = names();
  if (std::ranges::find(known, name) == known.end()) {
    std::string expected = "one of ";
    for (const std::string& one : known) expected += one + ", ";
    throw_invalid(
        "Codec", expected + "a rate such as rate1.5, a k such as topk32, or a format such as 1-4-3",
        "'", name, "'");
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
      if (rate > 0) return rate_name(rate);
      return (coder == EntropyCoder::kNone ? "packed" : "uniform") + std::to_string(bits);
    case PayloadKind::kFloat:
      return format == split_for_gradients(format.bits()) ? "fp" + std::to_string(format.bits())
                                                          : format.name();
    case PayloadKind::kTopk:
      return std::string(kTopk) + (k == 64 ? "" : std::to_string(k));
    default:
      return std::string(payload_kind_name(kind));
  }
}

void Codec::check() const {
  const auto expect = [](bool holds, std::string_view expected, const auto&... got) {
    slimgrad::check(holds, "Codec", expected, got...);
  };
  expect(kind != PayloadKind::kRaw, "kind to be one of lossless, uniform, float, pruned, topk",
         "raw");
  if (kind == PayloadKind::kTopk)
    check_topk("Codec", k, of, bits);
  else
    expect(bits >= kFewestBits && bits <= kMostBits, "2 to 8 bits", bits);
  if (rate != 0) {
    check_rate(rate);
    expect(kind == PayloadKind::kUniform, "kind uniform with a rate", payload_kind_name(kind));
    expect(coder == EntropyCoder::kRans, "coder rans with a rate", entropy_coder_name(coder));
  }
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
