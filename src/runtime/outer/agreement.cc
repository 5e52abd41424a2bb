#include "runtime/outer/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "base/check.h"
#include "torch/elements.h"

namespace slimgrad::outer {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;
constexpr char kFailed[] = "failed\n";  // in front of an error instead of settings

// A line each. No name has '=', and no value a line end.
std::string to_text(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += name + "=" + value + "\n";
  return text;
}

std::string value_of(const std::string& name, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "=")) return line.substr(name.size() + 1);
  return "none";
}

// Tensors of `sizes` values, one for each rank.
std::vector<Exchange::Tensors> room_for(const std::vector<std::int64_t>& sizes) {
  std::vector<Exchange::Tensors> room;
  for (const std::int64_t size : sizes) room.push_back({at::empty({size}, at::kFloat)});
  return room;
}

// The text of every rank. An exchange carries floats: each has a byte.
std::vector<std::string> all_texts(Exchange& exchange, const std::string& own) {
  const Codec exact = Codec::parse("lossless");
  const auto world = static_cast<std::size_t>(exchange.size());
  const auto length = static_cast<std::int64_t>(own.size());
  auto lengths = room_for(std::vector<std::int64_t>(world, 1));
  exchange.all_gather(lengths, {at::full({1}, double(length), at::kFloat)}, exact)->wait();
  std::vector<std::int64_t> sizes;
  for (const auto& one : lengths)
    sizes.push_back(std::clamp<std::int64_t>(one[0].item<std::int64_t>(), 0, kMostBytes));
  const at::Tensor bytes = at::empty({length}, at::kFloat);
  std::ranges::copy(own, torch_ops::mutable_elements<float>(bytes).begin());
  auto received = room_for(sizes);
  exchange.all_gather(received, {bytes}, exact)->wait();
  std::vector<std::string> texts;
  for (const auto& one : received) {
    texts.emplace_back();
    for (const float byte : torch_ops::elements<float>(one[0]))
      texts.back() += static_cast<char>(byte);
  }
  return texts;
}

}  // namespace

void check_agreement(Exchange& exchange, const char* op,
                     const std::function<Settings()>& describe) {
  std::string own;
  std::exception_ptr error;
  try {
    own = to_text(describe());
  } catch (const std::exception& raised) {
    error = std::current_exception();
    own = std::string(kFailed) + raised.what();
  }
  if (own.size() > kMostBytes) own.resize(kMostBytes);
  const std::vector<std::string> texts = all_texts(exchange, own);
  if (error) std::rethrow_exception(error);
  const auto rank_name = [&](std::size_t rank) {
    return "rank " + std::to_string(exchange.global_rank(static_cast<int>(rank)));
  };
  const std::string brackets = "[" + std::string(op) + "] ";
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (texts[rank].starts_with(kFailed))
      throw InvalidArgument(brackets + "failed on " + rank_name(rank) + ": " +
                            texts[rank].substr(sizeof(kFailed) - 1));
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    std::string got;
    std::istringstream lines(texts[0] + texts[rank]);
    for (std::string line; std::getline(lines, line);) {
      const std::string name = line.substr(0, line.find('='));
      const std::string first = value_of(name, texts[0]), other = value_of(name, texts[rank]);
      const std::string words =
          name + ": " + first + " on " + rank_name(0) + ", " + other + " on " + rank_name(rank);
      if (first != other && got.find(words) == std::string::npos)
        got += (got.empty() ? "" : "; ") + words;
    }
    throw_invalid(op, "the same settings on all ranks", got);
  }
}

}  // namespace slimgrad::outer
