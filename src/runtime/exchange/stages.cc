#include <slimgrad/stages.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/check.h"
#include "runtime/exchange/stage_link.h"

namespace slimgrad {

using exchange::Header;
using exchange::MessageKind;
using exchange::TensorHeader;

StageActivations StageActivations::parse(std::string_view text, std::string_view op) {
  constexpr std::string_view kUniform = "uniform";
  if (text == "plain") return {};
  if (text == "lossless") return {.mode = Mode::kLossless};
  // Rounding to nearest with two bits leaves nothing but the largest magnitude.
  const std::optional<FloatChoice> choice = parse_float_choice(text);
  if (choice && choice->bits >= 3)
    return {.mode = Mode::kFloat, .bits = choice->bits, .format = choice->format};
  if (text.size() == kUniform.size() + 1 && text.starts_with(kUniform) && text.back() >= '2' &&
      text.back() <= '8')
    return {.mode = Mode::kUniform, .bits = text.back() - '0'};
  throw_invalid(op,
                "activations to be None, 'lossless', 'fp3' to 'fp8', a format of 3 to 8 bits such "
                "as '1-4-3', or 'uniform2' to 'uniform8'",
                "'", text, "'");
}

// ---- the end of a stage ------------------------------------------------------------------------

struct StageOutput::State {
  StageActivations activations;
  bool packed;
  exchange::StageLink link;
  std::int64_t next = 0;
  std::map<std::int64_t, TensorHeader> expected = {};  // what has no gradient yet
  std::map<std::int64_t, at::Tensor> early = {};       // gradients that were not asked for yet

  void receive_one();
};

StageOutput::StageOutput(const StageGroup& group, int to, const StageActivations& activations,
                         const StageOptions& options)
    : state_(new State{activations, options.packed, {group, to, options, "StageOutput"}}) {}
StageOutput::~StageOutput() = default;

std::int64_t StageOutput::send(const at::Tensor& y, bool wants_gradient) {
  const std::int64_t number = state_->next;
  const exchange::StageMessage message =
      exchange::activation_message(y, number, state_->activations, state_->packed, wants_gradient);
  state_->link.send(message);
  if (wants_gradient) state_->expected.emplace(number, *message.header.tensor);
  state_->next = number + 1;
  return number;
}

at::Tensor StageOutput::receive(std::int64_t number) {
  State& state = *state_;
  check(state.expected.contains(number) || state.early.contains(number), "StageOutput",
        "one backward pass for each token", "a second for token ", number);
  while (!state.early.contains(number))
    state.link.refusing(MessageKind::kGradient, number, [&] { state.receive_one(); });
  return std::move(state.early.extract(number).mapped());
}

void StageOutput::State::receive_one() {
  const Header header = link.receive();
  const auto number = static_cast<std::int64_t>(header.number);
  const auto found = expected.find(number);
  std::ostringstream text;
  if (header.kind != MessageKind::kGradient || found == expected.end()) {
    text << "expected the gradient of one of ";
    int left = 8;
    for (auto one = expected.begin(); one != expected.end() && left > 0; ++one, --left)
      text << (one == expected.begin() ? "" : ", ") << one->first;
    text << ", got " << kind_name(header.kind) << " " << header.number;
    exchange::refuse_message(text.str());
  }
  const TensorHeader& sent = found->second;
  if (header.tensor->shape != sent.shape || header.tensor->type != sent.type) {
    text << "expected " << sent.describe() << ", as the activation was, got "
         << header.tensor->describe();
    exchange::refuse_message(text.str());
  }
  early[number] = stage_tensor(header, link.receive_body(header));
  expected.erase(found);
}

void StageOutput::flush() { state_->link.flush(); }
Traffic StageOutput::sent() const { return state_->link.sent(); }
Traffic StageOutput::received() const { return state_->link.received(); }

// ---- the beginning of a stage ------------------------------------------------------------------

struct StageInput::State {
  StageLimits limits;
  bool packed;
  exchange::StageLink link;
  std::int64_t next = 0;

  void check_expected(const Header& header) const;
};

StageInput::StageInput(const StageGroup& group, int source, const StageLimits& limits,
                       const StageOptions& options)
    : state_(new State{limits, options.packed, {group, source, options, "StageInput"}}) {}
StageInput::~StageInput() = default;

StageInput::Received StageInput::receive() {
  State& state = *state_;
  return state.link.refusing(MessageKind::kActivation, state.next, [&] {
    const Header header = state.link.receive();
    state.check_expected(header);
    const at::Tensor x = stage_tensor(header, state.link.receive_body(header));
    return Received{x, state.next++, header.tensor->wants_gradient};
  });
}

void StageInput::State::check_expected(const Header& header) const {
  std::ostringstream text;
  if (header.kind != MessageKind::kActivation ||
      header.number != static_cast<std::uint64_t>(next)) {
    text << "expected activation " << next << ", got " << kind_name(header.kind) << " "
         << header.number;
    exchange::refuse_message(text.str());
  }
  const TensorHeader& got = *header.tensor;
  if (got.plain_bytes() > static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_bytes, 0))) {
    text << "expected at most max_bytes=" << limits.max_bytes << ", got " << got.describe() << ": "
         << got.plain_bytes() << " bytes";
    exchange::refuse_message(text.str());
  }
  const bool has_shape =
      !limits.shape || std::ranges::equal(*limits.shape, got.shape, [](auto wanted, auto length) {
        return wanted == -1 || wanted == length;
      });
  if (has_shape && (!limits.type || *limits.type == got.type)) return;
  text << "expected " << (limits.type ? exchange::type_name(*limits.type) : "any type") << " of ";
  if (limits.shape)
    text << "shape " << at::IntArrayRef(*limits.shape);
  else
    text << "any shape";
  text << ", got " << got.describe();
  exchange::refuse_message(text.str());
}

void StageInput::send(const at::Tensor& gradient, std::int64_t number, const StageGradients& how) {
  state_->link.send(exchange::gradient_message(gradient, number, how, state_->packed));
}

void StageInput::flush() { state_->link.flush(); }
Traffic StageInput::sent() const { return state_->link.sent(); }
Traffic StageInput::received() const { return state_->link.received(); }

}  // namespace slimgrad
