// The ops that pack and unpack what backward keeps, for callers in C++: on the CPU, and on devices
// with kernels (torch/device/launcher.h), with the same bits.
#ifndef SLIMGRAD_TORCH_SAVED_OPS_H_
#define SLIMGRAD_TORCH_SAVED_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "formats/saved.h"

namespace slimgrad::torch_ops {

at::Tensor packed_saved(const at::Tensor& x, std::int64_t bits, std::int64_t group,
                        std::string_view rounding, std::int64_t seed, std::int64_t number);
at::Tensor unpacked_saved(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                          at::ScalarType dtype, std::int64_t bits, std::int64_t group);

// Empty if it would save too little. only_masks: and for all but those whose values are 0 or one
// other number. On a device the host waits once, since the number of bytes depends on values.
at::Tensor packed_exact(const at::Tensor& x, bool only_masks);
at::Tensor unpacked_exact(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                          at::ScalarType dtype);

// Where less than an eighth of the bytes is saved, the tensor may as well stay as it is.
constexpr bool saves_enough(std::size_t packed_bytes, std::size_t plain_bytes) {
  return packed_bytes <= plain_bytes - plain_bytes / 8;
}

// ---- device.cc ---------------------------------------------------------------------------------

// One kernel and a fill of memory; one kernel; two, a copy of the head to the device and a wait
// between them; one. REQUIRES: sizes are checked, tensors without gaps.
void pack_saved_on_device(const at::Tensor& dense, const saved::Format& format, std::uint64_t seed,
                          const at::Tensor& words);
void unpack_saved_on_device(const at::Tensor& words, const saved::Format& format,
                            const at::Tensor& result);
at::Tensor pack_exact_on_device(const at::Tensor& dense, bool only_masks);
void unpack_exact_on_device(const at::Tensor& bytes, const at::Tensor& result);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_SAVED_OPS_H_
