// Which kernels run, for looking into speed and results.
#include <torch/library.h>

#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/dispatch.h"

namespace slimgrad::torch_ops {
namespace {

using Names = std::vector<std::string>;

std::tuple<std::string, Names, Names> kernel_sets() {
  std::string selected = kernels::selected_kernel_set();
  return {std::move(selected), kernels::kernel_sets(), kernels::compiled_kernel_sets()};
}

void select_kernel_set(std::string_view name) {
  kernels::obey_environment();  // what comes first, and would otherwise undo this
  kernels::select_kernel_set(name);
}

// The compiler; whether std::string is that of its C++11 ABI; whether ops use several threads.
std::tuple<std::string, bool, bool> build_facts() {
#ifdef __clang__
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI == 0
  constexpr bool kCxx11Abi = false;
#else
  constexpr bool kCxx11Abi = true;
#endif
#ifdef _OPENMP
  constexpr bool kSeveralThreads = true;
#else
  constexpr bool kSeveralThreads = false;
#endif
  return {compiler, kCxx11Abi, kSeveralThreads};
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("_kernel_sets", kernel_sets);
  m.impl("_select_kernel_set", select_kernel_set);
  m.impl("_build_facts", build_facts);
}

}  // namespace slimgrad::torch_ops
