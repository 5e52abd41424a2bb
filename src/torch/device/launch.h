// From tensors to the arguments of kernels: what all ops on devices share.
#ifndef SLIMGRAD_TORCH_DEVICE_LAUNCH_H_
#define SLIMGRAD_TORCH_DEVICE_LAUNCH_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "device/kernel_list.h"
#include "torch/device/launch_record.h"
#include "torch/device/launcher.h"
#include "torch/elements.h"

namespace slimgrad::torch_ops {

// Starts a kernel on the device of a tensor, with as many blocks as its arguments ask for.
template <class Kernel>
void start(const typename Kernel::Arguments& arguments, const at::Tensor& on) {
  const std::uint64_t num_blocks = Kernel::num_blocks(arguments);
  if (num_blocks == 0) return;
  const char* const name = device::kKernelName<Kernel>;
  const auto launch = [&] {
    launcher_of(on.device()).launch(name, num_blocks, Kernel::kThreads, &arguments, on.device());
  };
  if (!records_launches()) return launch();
  record_launch(name, Kernel::traffic(arguments), on.device(), launch);
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

// The words of codes, contiguous and where kernels read 16 bytes at once: a copy, if they are a
// slice of another tensor that lies otherwise.
inline at::Tensor aligned(const at::Tensor& words) {
  const at::Tensor plain = words.contiguous();
  return reinterpret_cast<std::uintptr_t>(plain.const_data_ptr()) % 16 == 0 ? plain : plain.clone();
}

// Fills a tensor without gaps with a byte.
inline void fill_bytes(const at::Tensor& x, std::uint8_t byte) {
  launcher_of(x.device()).fill(x.mutable_data_ptr(), byte, x.nbytes(), x.device());
}
// A one-dimensional tensor of equal bytes on the device of another one.
inline at::Tensor filled(std::int64_t size, at::ScalarType type, std::uint8_t byte,
                         const at::Tensor& like) {
  at::Tensor result = at::empty({size}, like.options().dtype(type));
  fill_bytes(result, byte);
  return result;
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_LAUNCH_H_
