// The streams of messages between two ranks of a group.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_STREAMS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_STREAMS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "runtime/exchange/message.h"

namespace slimgrad::exchange {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

// One stream for each time that an exchange passes something on. Its tag is kFirstTag plus its
// number, which no one else should use in a group.
enum Stage { kSpread, kGather, kFinish, kStages };
inline constexpr int kFirstTag = 0x5347;

// A thread that sends or receives ends when it had nothing to do for so long.
inline constexpr std::chrono::milliseconds kIdle{500};

inline Work send_to(const Group& group, const at::Tensor& message, int peer, int stage) {
  std::vector<at::Tensor> messages = {message};
  return group->send(messages, peer, kFirstTag + stage);
}

inline std::uint8_t* bytes_of(const at::Tensor& message) {
  return static_cast<std::uint8_t*>(message.mutable_data_ptr());
}

// A message without a body.
inline at::Tensor header_alone(const Header& header) {
  at::Tensor message = at::empty({static_cast<std::int64_t>(kHeaderBytes)}, at::kByte);
  write_header(header, bytes_of(message));
  return message;
}

// What went wrong with a stream, without torch's stack.
inline std::string first_line(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_STREAMS_H_
