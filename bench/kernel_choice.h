// Which kernels are measured: those that SLIMGRAD_KERNELS names, or the best.
#ifndef SLIMGRAD_BENCH_KERNEL_CHOICE_H_
#define SLIMGRAD_BENCH_KERNEL_CHOICE_H_

#include <cstdlib>
#include <string>

namespace slimgrad {

inline std::string chosen_kernel_set() {
  const char* const name = std::getenv("SLIMGRAD_KERNELS");
  return name == nullptr ? "best" : name;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_BENCH_KERNEL_CHOICE_H_
