#include "device/host_kernels.h"

#include <algorithm>
#include <vector>

#include "device/kernel_list.h"

namespace slimgrad::device {

std::span<const HostKernel> host_kernels() {
  static const std::vector<HostKernel> kernels = [] {
    std::vector<HostKernel> all = {
#define SLIMGRAD_ENTRY(name, ...) {#name, run_on_host<__VA_ARGS__>},
        SLIMGRAD_DEVICE_KERNELS(SLIMGRAD_ENTRY)
#undef SLIMGRAD_ENTRY
    };
    std::ranges::sort(all, {}, &HostKernel::name);
    return all;
  }();
  return kernels;
}

const HostKernel* find_host_kernel(std::string_view name) {
  const auto kernels = host_kernels();
  const auto found = std::ranges::lower_bound(kernels, name, {}, &HostKernel::name);
  return found != kernels.end() && found->name == name ? &*found : nullptr;
}

}  // namespace slimgrad::device
