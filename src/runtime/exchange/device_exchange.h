// Exchanges of tensors on a device, by plain collectives of fixed size, which NCCL has.
//
// Codes of exactly as many bits as they have ("packed8") make messages whose size the host knows
// without a look at values. So nothing leaves the device and the host never waits: it enqueues, on
// a stream of its own beside backward's,
//
//   code a shard for each rank -> all_to_all_single -> add them up in the order of ranks, divide
//   -> code the sum -> all_gather_into_tensor -> decode all shards
//
// with the pieces, scales and draws of the engine: the bits are those of the same codec on the CPU.
// A piece with NaN or Inf is the exception: it cannot travel as it is in a message of fixed size,
// and becomes NaN on all ranks.
//
// A slot is what one rank sends to another; all are equally long, as the collectives ask for.
//
//   |header, as in message.h|a head of 8 bytes for each coded piece|pieces that travel as they
//   are|codes|
//
// Headers are the same on all ranks that agree. The device compares them, and a slot with another
// one decodes to NaN; the host gets a copy, which it looks at when it is there: in wait(), or in
// the next exchange. So settings that differ, and a rank that failed between two collectives, whose
// header says why, are an error on all ranks, a little later. What fixed size does not allow is to
// tell those who wait in a collective that a rank does not enter: they learn the cause from the
// group's store when the backend gives up (NCCL's watchdog, Gloo's timeout or its broken
// connection); and ranks whose slots differ in size are up to the backend.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_DEVICE_EXCHANGE_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_DEVICE_EXCHANGE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exchange/faults.h"
#include "runtime/exchange/job.h"

namespace slimgrad::exchange {

// Whether a codec's messages have a size that does not depend on values.
bool has_fixed_size(const Codec& codec);

// Those of one group. Calls come from one thread at a time.
class DeviceExchange : public std::enable_shared_from_this<DeviceExchange> {
 public:
  explicit DeviceExchange(std::vector<int> global_ranks) : global_ranks_(std::move(global_ranks)) {}

  // Enqueues an exchange, whose number is counted. Returns what makes the caller's stream wait for
  // it, and throws ExchangeError if it is known to have failed; the job's tensors live as long.
  // Throws ExchangeError if an exchange of the group failed before.
  std::function<void()> start(const Group& group, const JobPtr& job, std::uint64_t number);

 private:
  struct Layout;
  struct Status;

  at::Tensor exchange(const Group& group, Job& job, const at::Tensor& header);
  void code(Job& job, const std::vector<Frame>& frames, const Layout& layout, Stage stage,
            std::uint64_t seed, const at::Tensor& slot);
  void decode(const Job& job, const std::vector<Frame>& frames, const Layout& layout,
              const at::Tensor& slot) const;
  void sum(const Job& job, const Layout& layout, const at::Tensor& slots, int own) const;

  void look();
  std::optional<Fault> fault_in(const Status& status) const;
  std::string words_of(const Group& group, const Job& job, const std::string& text) const;
  [[noreturn]] void fail(Status& status, const Fault& fault);

  const std::vector<int> global_ranks_;
  std::optional<c10::Stream> stream_;
  std::mutex mutex_;  // guards what follows: wait() comes from any thread
  std::deque<std::shared_ptr<Status>> open_;
  std::string error_;  // empty: none
};

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_DEVICE_EXCHANGE_H_
