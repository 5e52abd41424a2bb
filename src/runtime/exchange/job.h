// One exchange: what a rank sends, receives and sums in it, and what becomes of it.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_JOB_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_JOB_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <slimgrad/codec.h>

#include "runtime/exchange/shards.h"
#include "runtime/exchange/streams.h"

namespace slimgrad::exchange {

// What becomes of an exchange, for whoever waits. It is settled once.
class Outcome {
 public:
  void complete();
  void fail(const std::string& text);
  // Whether it is settled by then. Throws ExchangeError if it failed.
  bool wait_until(std::chrono::steady_clock::time_point time) const;
  void wait() const;
  bool is_complete() const;
  // Calls `then`, with the error or none, when it is settled; at once if it is.
  void when_settled(std::function<void(std::exception_ptr)> then);

 private:
  void settle(std::exception_ptr error);

  mutable std::mutex mutex_;
  mutable std::condition_variable settled_;
  bool is_settled_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> then_;
};

// What a rank sends, receives and sums in one exchange.
struct Job {
  std::string op;
  Codec codec;
  at::ScalarType type = at::kFloat;
  c10::Device device = c10::kCPU;
  std::uint64_t draws = 0;  // the seed of all its draws
  std::string settings;     // what ranks must agree on, as Header::text has it
  // Coded for each peer; what peers send is added to `own`.
  std::map<int, std::vector<Frame>> outgoing;
  std::vector<Frame> own;
  std::vector<int> summed_from;
  // Coded once for all peers. `own` is the same memory, which then has what they decode, and
  // becomes the sum.
  std::vector<Frame> for_all;
  double divide_by = 1;
  // `own` is then coded once and sent to all of these; shards are received from these.
  std::vector<int> readers;
  std::map<int, std::vector<Frame>> incoming;

  Outcome outcome;
  std::int64_t sent_bytes() const { return sent_.load(); }

 private:
  friend class Engine;
  friend class DeviceExchange;
  struct Sent {
    at::Tensor message;
    Work work;
  };
  Group group_;  // while it runs
  std::uint64_t number_ = 0;
  std::uint64_t settings_hash_ = 0;
  bool spread_done_ = false, reduce_done_ = false;  // guarded by the engine's lock
  std::mutex sends_mutex_;
  std::vector<Sent> sends_;
  std::vector<at::Tensor> buffers_;
  std::atomic<std::int64_t> sent_ = 0;
};
using JobPtr = std::shared_ptr<Job>;

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_JOB_H_
