// Messages between this process and one other, for the two ends of a boundary: who waits, how long,
// what is counted. A header is sent and then its body, of the size that it says: the receiver of an
// activation does not know it before.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_STAGE_LINK_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_STAGE_LINK_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <slimgrad/stages.h>

#include "runtime/exchange/stage_message.h"

namespace slimgrad::exchange {

class StageLink {
 public:
  // Throws InvalidArgument, in the name of `owner`, for a peer that is none.
  StageLink(StageGroup group, int peer, const StageOptions& options, const char* owner);

  // Returns at once. Throws BoundaryError if something that was sent before was not taken.
  void send(const StageMessage& message);
  void flush();

  // The next header. Throws BoundaryError if the peer has stopped, or a message was refused before,
  // and PayloadError.
  Header receive();
  // REQUIRES: what the header announces was found acceptable.
  at::Tensor receive_body(const Header& header);

  // call(), where a PayloadError names the message, here and to the peer.
  template <typename Call>
  auto refusing(MessageKind kind, std::int64_t number, const Call& call) {
    try {
      return call();
    } catch (const PayloadError& error) {
      const std::string said = std::string(kind_name(kind)) + " " + std::to_string(number) +
                               " from rank " + std::to_string(peer_) + ": " + error.what();
      refuse("it refused " + said);
      throw PayloadError(error.code(), "[" + std::string(owner_) + "] " + said);
    }
  }

  const Traffic& sent() const { return sent_; }
  const Traffic& received() const { return received_; }

 private:
  class Outbox;
  using Timeout = std::optional<std::chrono::milliseconds>;

  void refuse(const std::string& reason);
  void post(const at::Tensor& bytes, Timeout timeout);
  at::Tensor receive_bytes(std::int64_t count);
  // What was expected, in words, for an error.
  std::string expectation(const char* verb, Timeout timeout) const;

  const StageGroup group_;
  const int peer_, tag_;
  const Timeout timeout_;
  const char* const owner_;
  Traffic sent_, received_;
  std::string refusal_;                   // empty: none
  const std::shared_ptr<Outbox> outbox_;  // its thread may outlive the link
};

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_STAGE_LINK_H_
