// How a gradient is pruned for one product.
#ifndef SLIMGRAD_ARRAYS_SPARSE_PRUNE_DRAW_H_
#define SLIMGRAD_ARRAYS_SPARSE_PRUNE_DRAW_H_

#include <cstdint>

#include <slimgrad/treatment.h>

namespace slimgrad {

struct PruneDraw {
  Treatment treatment;  // that does not quantize; what survives is multiplied
  // The share of the elements that is expected to survive. The work is cut accordingly.
  double density = 0.1;
  // Index of the first element in the whole gradient, where this is a part of one.
  std::uint64_t first_index = 0;

  // Whether survivors are better picked by the vector than one by one.
  bool many() const { return density > 0.14; }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_PRUNE_DRAW_H_
