// Which version of the kernels runs. Every kernel exists as plain C++, called "scalar", which is
// its specification, and once for each instruction set that Highway compiles for; the best one that
// the CPU has is taken. The environment variable SLIMGRAD_KERNELS names another one ("scalar",
// "sse4", "avx2", ...), to find out whether a kernel is to blame for a result.
#ifndef SLIMGRAD_KERNELS_DISPATCH_H_
#define SLIMGRAD_KERNELS_DISPATCH_H_

#include <string>
#include <string_view>
#include <vector>

namespace slimgrad::kernels {

// The sets that run here: "scalar", then Highway's from the widest to the narrowest.
std::vector<std::string> kernel_sets();

// All that were compiled, also those that this CPU does not have.
std::vector<std::string> compiled_kernel_sets();

// The one that runs. Obeys SLIMGRAD_KERNELS, see below.
std::string selected_kernel_set();

// Throws InvalidArgument for a set that is not in kernel_sets(). "best" restores the default. Not
// for use while kernels run in another thread.
void select_kernel_set(std::string_view name);

// Obeys SLIMGRAD_KERNELS, the first time it is called. Throws InvalidArgument if the variable names
// no set. Whatever calls kernels calls this first.
void obey_environment();

bool use_scalar() noexcept;

// For code beside Highway's kernels that has a version for AVX2.
bool use_avx2() noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_DISPATCH_H_
