// The lists that a thread hands to kernels/sparse_sums.h, kept from one call to the next.
#ifndef SLIMGRAD_CODECS_SUM_LISTS_H_
#define SLIMGRAD_CODECS_SUM_LISTS_H_

#include <vector>

#include "kernels/sparse_sums.h"

namespace slimgrad {

struct SumLists {
  std::vector<kernels::Run> runs;
  std::vector<kernels::Sum> sums;

  void clear() {
    runs.clear();
    sums.clear();
  }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_SUM_LISTS_H_
