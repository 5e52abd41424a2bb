// The kernels of kernel_list.h on the host, by name: the grid as a loop over its blocks. For the
// tests of the kernels and for the test device; users have the kernels of src/kernels.
#ifndef SLIMGRAD_DEVICE_HOST_KERNELS_H_
#define SLIMGRAD_DEVICE_HOST_KERNELS_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace slimgrad::device {

// `shuffle` chooses the order of blocks and threads, which must not change a bit; 0 is the plain
// one.
template <class Kernel>
void run_on_host(std::uint64_t num_blocks, const void* arguments, std::uint32_t shuffle = 0) {
  const auto& a = *static_cast<const typename Kernel::Arguments*>(arguments);
  using Shared = typename Kernel::Shared;
  struct alignas(16) Bytes {
    unsigned char bytes[sizeof(Shared)];
  };
  const auto shared = std::make_unique<Bytes>();
  for (std::uint64_t i = 0; i < num_blocks; ++i) {
    // What a block before left behind, or nobody wrote, is no use.
    std::memset(shared->bytes, 0xcd, sizeof shared->bytes);
    Kernel::run({shuffle % 2 == 0 ? i : num_blocks - 1 - i, shuffle}, a,
                reinterpret_cast<Shared&>(shared->bytes));
  }
}

struct HostKernel {
  std::string_view name;
  void (*run)(std::uint64_t num_blocks, const void* arguments, std::uint32_t shuffle);
};

// All of them, sorted by name.
std::span<const HostKernel> host_kernels();

// Null for a name that there is not.
const HostKernel* find_host_kernel(std::string_view name);

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_HOST_KERNELS_H_
