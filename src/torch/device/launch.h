// From tensors to the arguments of kernels: what all ops on devices share.
#ifndef SLIMGRAD_TORCH_DEVICE_LAUNCH_H_
#define SLIMGRAD_TORCH_DEVICE_LAUNCH_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "device/kernel_list.h"
#include "torch/device/launcher.h"
#include "torch/elements.h"

namespace slimgrad::torch_ops {

// Starts a kernel on the device of a tensor, with as many blocks as its arguments ask for.
template <class Kernel>
void start(const typename Kernel::Arguments& arguments, const at::Tensor& on) {
  const std::uint64_t num_blocks = Kernel::num_blocks(arguments);
  if (num_blocks == 0) return;
  launcher_of(on.device())
      .launch(device::kKernelName<Kernel>, num_blocks, Kernel::kThreads, &arguments, on.device());
}

// The memory of a tensor without gaps, as a kernel sees it: nothing here may be read on the host.
template <typename T>
const T* read_by_kernel(const at::Tensor& x) {
  return elements<T>(x).data();
}
template <typename T>
T* written_by_kernel(const at::Tensor& x) {
  return mutable_elements<T>(x).data();
}

// A one-dimensional tensor of zeros on the device of another one, by a fill of its memory.
inline at::Tensor cleared(std::int64_t size, at::ScalarType type, const at::Tensor& like) {
  const at::Tensor result = at::empty({size}, like.options().dtype(type));
  launcher_of(like.device()).clear(result.mutable_data_ptr(), result.nbytes(), like.device());
  return result;
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_LAUNCH_H_
