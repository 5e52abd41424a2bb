// Tensors between processes, coded: sums and copies over a c10d::ProcessGroup with Gloo. Tensors on
// a device travel in fixed-size codes ("packed8") over its own backend, as NCCL, and the host does
// not wait; under other codecs they are copied to the host, coded there, and copied back.
//
//   auto exchange = slimgrad::Exchange::of(group);         // c10d::ProcessGroup, on every rank
//   exchange->all_reduce(gradients, Codec::parse("uniform8"), {.divide_by = 2})->wait();
//
// Every rank makes the same calls in the same order; what differs between ranks is refused, on all
// of them, with both settings. All ranks end with the same bits. A rank that fails tells the others
// why; from then on every exchange of the group throws ExchangeError with the first reason, and
// names the rank that had it. docs/distributed.md has the design and what is promised.
//
// Threads. Calls of one Exchange come from one thread at a time; wait() from any. Tensors belong to
// the exchange until it is complete. Threads of its own code, send and receive; they end when there
// is nothing to do, and an idle Exchange does not keep its group alive.
#ifndef SLIMGRAD_EXCHANGE_H_
#define SLIMGRAD_EXCHANGE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <slimgrad/codec.h>

namespace c10d {
class ProcessGroup;
}

namespace slimgrad {

// An exchange that did not come to its end, on any rank: a rank is gone, failed, or sent something
// else than was agreed.
class ExchangeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace exchange {
class DeviceExchange;
class Engine;
struct Job;
}  // namespace exchange

// An exchange under way.
class PendingExchange {
 public:
  // finish: for tensors on a device, what follows when `jobs` are complete.
  explicit PendingExchange(std::vector<std::shared_ptr<exchange::Job>> jobs,
                           std::function<void()> finish = {})
      : jobs_(std::move(jobs)), finish_(std::move(finish)) {}

  // Returns when the tensors have their values; on a device: when they will have them for what the
  // current stream does next. Throws ExchangeError.
  void wait() const;
  // The same, but returns false if that takes longer.
  bool wait_for(std::chrono::milliseconds time) const;
  bool is_complete() const;
  // What this rank sent, headers included. Final when the exchange is complete.
  std::int64_t sent_bytes() const;
  // The same exchange, with what wait() does when it is complete.
  std::shared_ptr<PendingExchange> then(std::function<void()> finish) const;
  // A future that gets `result` when the exchange is complete, or its error.
  c10::intrusive_ptr<c10::ivalue::Future> future(const at::Tensor& result) const;

 private:
  std::vector<std::shared_ptr<exchange::Job>> jobs_;
  std::function<void()> finish_;
};

struct ExchangeOptions {
  // Numbers the random draws; without it exchanges of the group are counted.
  std::optional<std::int64_t> step = {};
  double divide_by = 1;  // the sum is divided by this
  // Names tensors for random draws: calls with equal steps need keys of their own. By default 0, 1,
  // 2, ...
  std::vector<std::int64_t> keys = {};
};

class Exchange {
 public:
  // The exchange of a group, made when it is first asked for. What is coded on the host throws
  // InvalidArgument unless tensors on the CPU travel over Gloo, which takes messages that are
  // shorter than what was asked for.
  // global_ranks: for a group of some ranks, those in the whole job: errors name them, and replicas
  // of a group draw differently. By default 0, 1, 2, ... Keep the object as long as the group.
  static std::shared_ptr<Exchange> of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                      std::vector<int> global_ranks = {});

  using Tensors = std::vector<at::Tensor>;

  // The sum over ranks, in place, in every tensor. Tensors are dense, on one device, of float32,
  // bfloat16 or float16. `residuals`, for a codec with error feedback: for each tensor a contiguous
  // float32 one of its size and on its device, zeros at first, or none. Under a codec that
  // sends_to_all() the sum is that of all that ranks kept.
  std::shared_ptr<PendingExchange> all_reduce(const Tensors& tensors, const Codec& codec,
                                              const ExchangeOptions& options = {},
                                              const Tensors& residuals = {});
  // `outputs` become the sum over ranks of inputs[r], r the rank that asks. Inputs for other ranks
  // may be written to if the codec prunes or feeds back; the own part is summed as it is.
  std::shared_ptr<PendingExchange> reduce_scatter(const Tensors& outputs,
                                                  const std::vector<Tensors>& inputs,
                                                  const Codec& codec,
                                                  const ExchangeOptions& options = {},
                                                  const std::vector<Tensors>& residuals = {});
  // outputs[r] becomes what rank r's `tensors` are when decoded, on every rank alike, also on r
  // itself. Sizes may differ from rank to rank.
  std::shared_ptr<PendingExchange> all_gather(const std::vector<Tensors>& outputs,
                                              const Tensors& tensors, const Codec& codec,
                                              const ExchangeOptions& options = {});
  // Every rank's tensors become what those of rank `source`, counted in the group, are when
  // decoded.
  std::shared_ptr<PendingExchange> broadcast(const Tensors& tensors, const Codec& codec,
                                             int source = 0, const ExchangeOptions& options = {});

  int rank() const;
  int size() const;
  int global_rank(int rank) const;  // of a rank of the group, in the whole job

 private:
  explicit Exchange(std::shared_ptr<exchange::Engine> engine);
  std::shared_ptr<PendingExchange> start(std::vector<std::shared_ptr<exchange::Job>> jobs);
  std::shared_ptr<exchange::Job> new_job(const char* op, const Codec& codec, at::ScalarType type,
                                         const ExchangeOptions& options);

  std::shared_ptr<exchange::Engine> engine_;
  std::shared_ptr<exchange::DeviceExchange> on_device_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_EXCHANGE_H_
