#ifndef SLIMGRAD_TESTS_FOR_EACH_TARGET_H_
#define SLIMGRAD_TESTS_FOR_EACH_TARGET_H_

#include "kernels/dispatch.h"

namespace slimgrad {

// Calls f once for every set of kernels that this machine can run, with its name.
template <class F>
void for_each_target(F f) {
  for (const std::string& set : kernels::kernel_sets()) {
    kernels::select_kernel_set(set);
    f(set.c_str());
  }
  kernels::select_kernel_set("best");
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_FOR_EACH_TARGET_H_
