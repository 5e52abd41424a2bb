// What a DiLoCo has: shared tensors, the rounds under way, and counters.
#ifndef SLIMGRAD_RUNTIME_OUTER_ROUNDS_H_
#define SLIMGRAD_RUNTIME_OUTER_ROUNDS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <slimgrad/diloco.h>

#include "runtime/outer/shared_tensors.h"

namespace slimgrad {

namespace outer {

// An exchange of a fragment's distances. Nothing of it is in the shared tensors before all of it is
// there: residuals are copies, too.
struct Round {
  std::size_t fragment = 0;
  std::int64_t due = 0;  // the step after which it is applied
  // By the places in the fragment. Distances become their means.
  std::vector<at::Tensor> means = {};
  std::vector<at::Tensor> residuals = {};  // undefined: none
  std::vector<at::Tensor> handed_in = {};  // undefined: applied at once
  std::vector<std::shared_ptr<PendingExchange>> pending = {};

  void wait() const;
};

}  // namespace outer

struct DiLoCo::Rounds {
  std::shared_ptr<Exchange> exchange;
  std::function<void()> inner;
  DiLoCoOptions options;
  std::vector<outer::SharedTensor> tensors;
  std::vector<std::vector<std::size_t>> fragments;

  std::vector<outer::Round> under_way = {};  // in the order in which they began
  std::vector<std::int64_t> begun_after;     // the step, by fragments; -1: unknown
  std::int64_t num_steps = 0;
  std::int64_t num_begun = 0;  // numbers the draws of exchanges
  std::int64_t num_applied = 0;
  std::int64_t steps_of_last = 0, begun_at_last = 0;  // when the last one was applied
  std::int64_t sent_bytes = 0;
  std::string error = {};  // why a round failed; empty: none has

  void begin(std::size_t fragment, std::int64_t due);
  void apply(outer::Round& round);
  void check_good() const;  // throws ExchangeError after a failure
  [[noreturn]] void fail(const std::exception& error);
  State state_dict(bool own) const;
  void load_state_dict(const State& state);
};

}  // namespace slimgrad

#endif  // SLIMGRAD_RUNTIME_OUTER_ROUNDS_H_
