// A boundary between two stages of a model, in two processes: activations go forward, gradients
// come back, both coded.
//
//   // the process with the first part              // the process with the second
//   StageOutput output(group, 1);                   StageInput input(group, 0);
//   const auto y = first->forward(x);               auto [x, number, wants_gradient] =
//   const auto number = output.send(y);                 input.receive();
//   y.backward(output.receive(number));             x.requires_grad_();
//                                                   loss(second->forward(x)).backward();
//                                                   input.send(x.grad(), number);
//
// Every value that a gate leaves of a gradient comes back as it is, so two processes train what one
// with the same gate trains, to the bit. A receiver believes nothing: type, shape and size are
// compared with what is expected before anything is allocated. What cannot be accepted throws
// PayloadError, and the other process, which is told, BoundaryError. docs/pipeline.md has what is
// promised; docs/format.md the bytes, which are those of exchange.h.
//
// Threads. Calls of one object come from one thread at a time. What is sent goes on while the
// caller computes: flush() before a process ends.
#ifndef SLIMGRAD_STAGES_H_
#define SLIMGRAD_STAGES_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/float_format.h>

namespace c10d {
class ProcessGroup;
}

namespace slimgrad {

// The process on the other side is gone, silent, or refused what it was sent.
class BoundaryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What went one way. `bytes` are those on the wire, headers too; `plain_bytes` those of the same
// tensors as they are.
struct Traffic {
  std::int64_t messages = 0, bytes = 0, plain_bytes = 0;
};

// How activations travel. Few bits are rounded to nearest, so the values are the same in every
// process; what is not finite goes without loss.
struct StageActivations {
  enum class Mode { kPlain, kLossless, kFloat, kUniform };
  Mode mode = Mode::kPlain;
  int bits = 0;
  std::optional<FloatFormat> format = {};  // none: the split with the least squared error

  // "plain", "lossless", "fp3" to "fp8", a format of 3 to 8 bits, "uniform2" to "uniform8". Throws
  // InvalidArgument, in the name of `op`, for others.
  static StageActivations parse(std::string_view text, std::string_view op = "StageActivations");
};

// How gradients travel: as they are, without loss, or as a gate leaves them (gradient_gate.h).
struct StageGradients {
  bool lossless = false;
  at::Tensor plan = {}, stats = {};  // of the gate, which send() passes; undefined: none
  std::int64_t stream = 0;
};

struct StageOptions {
  bool packed = false;  // codes of a format travel in exactly as many bits as they have
  int tag = 0x5360;     // one for each boundary between the same two processes
  // How long the other process may take; none: as long as the process group says.
  std::optional<std::chrono::milliseconds> timeout = {};
};

using StageGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

// The end of a stage: sends to the process with the StageInput, whose rank in the group is `to`.
class StageOutput {
 public:
  StageOutput(const StageGroup& group, int to, const StageActivations& activations = {},
              const StageOptions& options = {});
  ~StageOutput();

  // Returns at once, with the number of the microbatch; what goes wrong is thrown by a later call.
  std::int64_t send(const at::Tensor& y, bool wants_gradient = true);
  // The gradient of a microbatch. Those of others that arrive before it are kept.
  at::Tensor receive(std::int64_t number);
  // Returns when the other process has taken all that was sent.
  void flush();
  Traffic sent() const;
  Traffic received() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a StageInput accepts.
struct StageLimits {
  std::optional<std::vector<std::int64_t>> shape = {};  // -1 for any length
  std::optional<at::ScalarType> type = {};
  std::int64_t max_bytes = std::int64_t{1} << 30;  // of the tensor as it is
};

// The beginning of a stage: receives from the process with the StageOutput, whose rank is `source`.
class StageInput {
 public:
  StageInput(const StageGroup& group, int source, const StageLimits& limits = {},
             const StageOptions& options = {});
  ~StageInput();

  struct Received {
    at::Tensor x;
    std::int64_t number;
    bool wants_gradient;
  };
  Received receive();
  // Returns at once; what goes wrong is thrown by a later call.
  void send(const at::Tensor& gradient, std::int64_t number, const StageGradients& how = {});
  void flush();
  Traffic sent() const;
  Traffic received() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_STAGES_H_
