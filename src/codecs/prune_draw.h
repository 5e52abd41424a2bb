// How a gradient is pruned for one product.
#ifndef SLIMGRAD_CODECS_PRUNE_DRAW_H_
#define SLIMGRAD_CODECS_PRUNE_DRAW_H_

#include <cstdint>

#include "codecs/plan.h"
#include "kernels/apply_plan.h"

namespace slimgrad {

struct PruneDraw {
  double threshold = 0;  // 0: as it is
  std::uint64_t seed = 0;
  // The share of the elements that is expected to survive. The work is cut accordingly.
  double density = 0.1;
  // Of the first element in the whole gradient, where this is a part of one.
  std::uint64_t first_index = 0;

  // Whether survivors are better picked by the vector than one by one.
  bool many() const { return density > 0.14; }
};

template <typename T>
kernels::Plan pruning_plan(const PruneDraw& draw) {
  kernels::Plan plan;
  plan.threshold = make_threshold("prune", draw.threshold, kValueType<T>);
  plan.prunes = plan.threshold > 0;
  plan.seed = draw.seed;
  return plan;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_PRUNE_DRAW_H_
