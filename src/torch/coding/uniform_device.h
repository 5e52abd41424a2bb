// Uniform codes of a few bits on a device, as gradients travel in: the symbols of
// encode(mode="uniform"), packed without gaps and without entropy coding.
#ifndef SLIMGRAD_TORCH_CODING_UNIFORM_DEVICE_H_
#define SLIMGRAD_TORCH_CODING_UNIFORM_DEVICE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace slimgrad::torch_ops {

struct UniformCodes {
  at::Tensor packed;  // bytes, in the order of a contiguous tensor
  // Two int32 words: the bits of the largest finite magnitude, which the step comes from, and how
  // many values are NaN, which has the code of zero, or Inf, which has that of the largest.
  at::Tensor largest;
};

// Two kernels and a fill of memory; nothing waits. Throws InvalidArgument unless bits are 2 to 8.
UniformCodes pack_uniform_on_device(const at::Tensor& x, std::int64_t bits, bool is_stochastic,
                                    std::uint64_t seed);

// The same into memory of the caller: codes of uniform_bytes(), and two words that are 0. Two
// kernels. REQUIRES: x and codes are contiguous.
std::int64_t uniform_bytes(std::int64_t num_values, std::int64_t bits);
void pack_uniform_into(const at::Tensor& x, std::int64_t bits, bool is_stochastic,
                       std::uint64_t seed, const UniformCodes& codes);

// In place of what `out` holds, or added to it, which only float32 can be. One kernel. Throws
// InvalidArgument for codes of another size. REQUIRES: out is contiguous.
void unpack_uniform_on_device(const UniformCodes& codes, std::int64_t bits, bool is_added,
                              const at::Tensor& out);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CODING_UNIFORM_DEVICE_H_
