// The ends of a boundary as classes of torch, which is how Python holds them; and messages of
// stages for torch.distributed.pipelining, which sends and receives them itself.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cmath>
#include <limits>

#include <slimgrad/stages.h>

#include "base/check.h"
#include "runtime/exchange/python_errors.h"
#include "runtime/exchange/stage_message.h"

namespace slimgrad {
namespace {

using exchange::in_python;
using exchange::MessageKind;

StageActivations activations_of(const std::optional<std::string>& text, const std::string& op) {
  return text ? StageActivations::parse(*text, op) : StageActivations();
}

StageGradients gradients_of(bool lossless, const std::optional<at::Tensor>& plan,
                            const std::optional<at::Tensor>& stats, std::int64_t stream) {
  return {.lossless = lossless,
          .plan = plan.value_or(at::Tensor()),
          .stats = stats.value_or(at::Tensor()),
          .stream = stream};
}

StageOptions options_of(bool packed, std::int64_t tag, std::optional<double> timeout,
                        const char* op) {
  StageOptions options{.packed = packed, .tag = static_cast<int>(tag)};
  if (!timeout) return options;
  check(*timeout > 0 && std::isfinite(*timeout), op, "timeout to be seconds > 0 or None", *timeout);
  // Ten years are as good as any longer time, and a number of milliseconds.
  options.timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::ceil(1e3 * std::min(*timeout, 3e8))));
  return options;
}

// A rank that is no int is none of the group, either.
int rank_of(std::int64_t rank) {
  return static_cast<int>(std::clamp<std::int64_t>(rank, -1, std::numeric_limits<int>::max()));
}

std::vector<std::int64_t> numbers(const Traffic& traffic) {
  return {traffic.messages, traffic.bytes, traffic.plain_bytes};
}

struct OutputObject : torch::CustomClassHolder {
  OutputObject(const std::string& group, std::int64_t to,
               const std::optional<std::string>& activations, bool packed, std::int64_t tag,
               std::optional<double> timeout)
      : end(in_python([&] {
          return std::make_unique<StageOutput>(c10d::resolve_process_group(group), rank_of(to),
                                               activations_of(activations, "StageOutput"),
                                               options_of(packed, tag, timeout, "StageOutput"));
        })) {}

  std::int64_t send(const at::Tensor& y, bool wants_gradient) const {
    return in_python([&] { return end->send(y, wants_gradient); });
  }
  at::Tensor receive(std::int64_t number) const {
    return in_python([&] { return end->receive(number); });
  }
  void flush() const {
    in_python([&] { end->flush(); });
  }
  std::vector<std::int64_t> sent() const { return numbers(end->sent()); }
  std::vector<std::int64_t> received() const { return numbers(end->received()); }

  std::unique_ptr<StageOutput> end;
};

struct InputObject : torch::CustomClassHolder {
  InputObject(const std::string& group, std::int64_t source,
              const std::optional<std::vector<std::int64_t>>& shape,
              std::optional<std::int64_t> type, std::int64_t max_bytes, bool packed,
              std::int64_t tag, std::optional<double> timeout)
      : end(in_python([&] {
          StageLimits limits{.shape = shape, .max_bytes = max_bytes};
          if (type) limits.type = static_cast<at::ScalarType>(*type);
          return std::make_unique<StageInput>(c10d::resolve_process_group(group), rank_of(source),
                                              limits,
                                              options_of(packed, tag, timeout, "StageInput"));
        })) {}

  std::tuple<at::Tensor, std::int64_t, bool> receive() const {
    return in_python([&] {
      const auto [x, number, wants_gradient] = end->receive();
      return std::tuple(x, number, wants_gradient);
    });
  }
  void send(const at::Tensor& gradient, std::int64_t number, bool lossless,
            const std::optional<at::Tensor>& plan, const std::optional<at::Tensor>& stats,
            std::int64_t stream) const {
    in_python([&] { end->send(gradient, number, gradients_of(lossless, plan, stats, stream)); });
  }
  void flush() const {
    in_python([&] { end->flush(); });
  }
  std::vector<std::int64_t> sent() const { return numbers(end->sent()); }
  std::vector<std::int64_t> received() const { return numbers(end->received()); }

  std::unique_ptr<StageInput> end;
};

// Holds nothing: functions on messages.
struct MessagesObject : torch::CustomClassHolder {
  static void check_activations(const std::optional<std::string>& activations,
                                const std::string& op) {
    in_python([&] { activations_of(activations, op); });
  }
  static at::Tensor activation(const at::Tensor& x, std::int64_t number,
                               const std::optional<std::string>& activations, bool packed) {
    return in_python([&] {
      return exchange::activation_message(x, number, activations_of(activations, "boundary"),
                                          packed, true)
          .bytes;
    });
  }
  static at::Tensor gradient(const at::Tensor& gradient, std::int64_t number, bool packed,
                             bool lossless, const std::optional<at::Tensor>& plan,
                             const std::optional<at::Tensor>& stats, std::int64_t stream) {
    return in_python([&] {
      return exchange::gradient_message(gradient, number,
                                        gradients_of(lossless, plan, stats, stream), packed)
          .bytes;
    });
  }
  // Memory for any message with a tensor like this one.
  static at::Tensor room(const at::Tensor& like) {
    return at::empty({static_cast<std::int64_t>(exchange::kHeaderBytes + like.nbytes() +
                                                exchange::kPayloadSlack)},
                     at::kByte);
  }
  // The tensor of a message, which has to be this one, with a tensor like `like`.
  static at::Tensor tensor(const at::Tensor& bytes, bool is_gradient, std::int64_t number,
                           const at::Tensor& like) {
    return in_python([&] {
      const exchange::Header header = exchange::stage_header(bytes);
      const auto kind = is_gradient ? MessageKind::kGradient : MessageKind::kActivation;
      const exchange::TensorHeader wanted{.type = like.scalar_type(), .shape = like.sizes().vec()};
      if (header.kind != kind || header.number != static_cast<std::uint64_t>(number) ||
          header.tensor->shape != wanted.shape || header.tensor->type != wanted.type)
        exchange::refuse_message("expected " + wanted.describe() + ", got " +
                                 kind_name(header.kind) + " " + std::to_string(header.number) +
                                 (header.tensor ? ", " + header.tensor->describe() : ""));
      return stage_tensor(header, bytes.narrow(0, exchange::kHeaderBytes,
                                               static_cast<std::int64_t>(header.num_bytes)));
    });
  }
  // What arrives of activations, without sending them.
  static at::Tensor round_trip(const at::Tensor& x, const std::optional<std::string>& activations,
                               bool packed) {
    return tensor(activation(x, 0, activations, packed), false, 0, x).to(x.device());
  }
};

TORCH_LIBRARY_FRAGMENT(slimgrad, m) {
  m.class_<OutputObject>("StageOutput")
      .def(torch::init<const std::string&, std::int64_t, const std::optional<std::string>&, bool,
                       std::int64_t, std::optional<double>>())
      .def("send", &OutputObject::send)
      .def("receive", &OutputObject::receive)
      .def("flush", &OutputObject::flush)
      .def("sent", &OutputObject::sent)
      .def("received", &OutputObject::received);
  m.class_<InputObject>("StageInput")
      .def(torch::init<const std::string&, std::int64_t,
                       const std::optional<std::vector<std::int64_t>>&, std::optional<std::int64_t>,
                       std::int64_t, bool, std::int64_t, std::optional<double>>())
      .def("receive", &InputObject::receive)
      .def("send", &InputObject::send)
      .def("flush", &InputObject::flush)
      .def("sent", &InputObject::sent)
      .def("received", &InputObject::received);
  m.class_<MessagesObject>("StageMessages")
      .def_static("check_activations", &MessagesObject::check_activations)
      .def_static("activation", &MessagesObject::activation)
      .def_static("gradient", &MessagesObject::gradient)
      .def_static("room", &MessagesObject::room)
      .def_static("tensor", &MessagesObject::tensor)
      .def_static("round_trip", &MessagesObject::round_trip);
}

}  // namespace
}  // namespace slimgrad
