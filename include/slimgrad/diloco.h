// Training with few exchanges: ranks train alone for some steps, then exchange how far each one
// went (DiLoCo: Douillard et al., arXiv:2311.08105; in fragments and overlapped: arXiv:2501.18512).
//
//   slimgrad::DiLoCo diloco(slimgrad::Exchange::of(group),
//                           {network->named_parameters().pairs(),
//                           network->named_buffers().pairs()},
//                           [&] { optimizer.step(); }, {.every = 50});
//   for (...) { ... loss.backward(); diloco.step(); }      // instead of optimizer.step()
//
// Every rank begins a round from the same weights. After `every` steps the mean over ranks of the
// distances (weights at the beginning less weights now), which travels coded, is the gradient of an
// outer optimizer, SGD with Nesterov's momentum, that moves the shared weights; every rank goes on
// from those. All ranks have the same bits of them: an exchange ends with the same bits everywhere,
// and the outer step is made of single additions and multiplications in float32.
//
// The shared weights, momentum and distances are float32, on the CPU. Parameters may be float32,
// bfloat16 or float16, on any device, and become the shared weights in their type. Those that do
// not require a gradient are left alone, and one that several modules have counts once. Buffers of
// these types (running statistics of BatchNorm) become their means over ranks with each round of
// the last fragment, without loss; those of other types (counters) are left alone.
//
// **Fragments.** With `fragments` of F the parameters are divided by modules into F parts of about
// the same size, and each goes its own rounds, `every` / F steps after the one before: F times as
// many exchanges of an F-th of the bytes.
//
// **Overlap.** With `overlap` of T an exchange has T steps of training to come to its end. What was
// trained meanwhile is kept: weights change by the shared ones' less those that were handed in.
// Then ranks never have equal weights, only equal shared ones, until synchronize().
//
// **Faults.** A rank that is gone ends the round with an ExchangeError on all others. Nothing of a
// round is applied before all of it is there: state_dict() still has the state of the last whole
// one, from which any number of ranks can go on.
//
// Threads: one at a time. All ranks make the same calls in the same order.
#ifndef SLIMGRAD_DILOCO_H_
#define SLIMGRAD_DILOCO_H_

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <slimgrad/codec.h>
#include <slimgrad/exchange.h>

namespace slimgrad {

// The optimizer of the shared weights, torch::optim::SGD's rule: with g the mean distance,
//   m = momentum m + g;   weights -= lr (nesterov ? g + momentum m : m).
struct OuterOptions {
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;  // without momentum there is no difference

  friend bool operator==(const OuterOptions&, const OuterOptions&) = default;
};

struct DiLoCoOptions {
  OuterOptions outer = {};
  std::int64_t every = 50;  // steps of a round
  Codec codec = Codec::parse("fp4");
  std::int64_t fragments = 1;  // 1 to `every`
  std::int64_t overlap = 0;    // steps that an exchange may take, 0 to every - 1
  // With codec.error_feedback: the share of what was not sent that the next round adds. Below 1 it
  // is a momentum of each rank, of which what was sent is taken away: SparseLoCo (arXiv:2508.15706)
  // is 0.95 with the codec "topk", and an outer optimizer of lr 1 without momentum.
  double feedback = 1;
};

// What is trained. Names are those of the state.
struct DiLoCoTensors {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  Named parameters;
  Named buffers = {};
};

class DiLoCo {
 public:
  // Names to tensors, numbers too, for torch::pickle_save.
  using State = c10::Dict<std::string, at::Tensor>;

  // All ranks call it, and take the parameters and buffers of rank 0. `inner` takes a step of the
  // optimizer of this rank; without one the caller does so before each step(). Throws
  // InvalidArgument, on all ranks, if settings, names or sizes differ or those of one rank are
  // wrong.
  DiLoCo(std::shared_ptr<Exchange> exchange, DiLoCoTensors tensors, std::function<void()> inner,
         const DiLoCoOptions& options = {});
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // An inner step, and what of a round is due after it. Whether weights became, or with overlap
  // took up, shared ones. Throws ExchangeError.
  bool step();
  // Ends all rounds now: ranks have the same weights afterwards, to the bit. For the end of
  // training, and before all ranks are to have one model. What was exchanged after the last step
  // is not exchanged again.
  void synchronize();

  // step() in parts, for callers that do not want to block: begin_step(), wait_for() until it
  // returns true, end_step(), which returns what step() does. synchronize() is begin_last(),
  // waiting, end_step(), begin_all(), waiting, end_step().
  void begin_step();
  void begin_last();
  void begin_all();
  bool wait_for(std::chrono::milliseconds time);
  bool end_step();

  // The state of the last whole round, at any time, also after an ExchangeError, without an
  // exchange. It is the same on all ranks but for residuals, what rounding of this rank has lost.
  //
  // With `own` that of this rank as it stands between two steps, to go on to the bit with as many
  // ranks: every rank saves it beside its own weights and inner optimizer.
  State state_dict(bool own = false) const;
  // All ranks call it. Settings may differ from those of the run that saved. Parameters and buffers
  // become the shared ones; residuals go on if this is the rank that saved them, of as many. With a
  // state of `own` parameters stay as they are, and other numbers of ranks are refused. Throws
  // InvalidArgument, on all ranks, unless all have the state of the same round; nothing has changed
  // then.
  void load_state_dict(const State& state);

  std::int64_t num_steps() const;   // inner ones
  std::int64_t num_rounds() const;  // exchanges that were applied; `fragments` for each part once
  std::int64_t sent_bytes() const;  // by this rank, headers included
  const DiLoCoOptions& options() const;

 private:
  struct Rounds;
  std::unique_ptr<Rounds> rounds_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_DILOCO_H_
