// The entry points of the GPU's binary.
#include "device/kernel_list.h"

namespace slimgrad::device {

template <class Kernel>
__device__ __forceinline__ void run(const typename Kernel::Arguments& arguments) {
  // As bytes: some compilers want no constructors in shared memory, also where they do nothing.
  alignas(16) __shared__ unsigned char bytes[sizeof(typename Kernel::Shared)];
  Kernel::run({blockIdx.x}, arguments, reinterpret_cast<typename Kernel::Shared&>(bytes));
}

#define SLIMGRAD_ENTRY(name, ...)                                     \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads) \
      name(const __grid_constant__ __VA_ARGS__::Arguments arguments) { \
    run<__VA_ARGS__>(arguments);                                      \
  }
SLIMGRAD_DEVICE_KERNELS(SLIMGRAD_ENTRY)

}  // namespace slimgrad::device
