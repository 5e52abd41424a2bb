// Large results in memory that was used before. The system hands out fresh memory page by page,
// each cleared and entered on first touch, and torch gives large tensors back to it at once: on a
// CPU that is a good part of what a very sparse product costs. So what such a result leaves behind
// is kept, and the next one of the same size, in the same backward pass or in the next step, gets
// it.
//
// At most kMostKept bytes are kept; what has not been used for longest goes first. Smaller results
// than kLeastKept come from torch's allocator as ever.
#ifndef SLIMGRAD_TORCH_RECYCLED_MEMORY_H_
#define SLIMGRAD_TORCH_RECYCLED_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace slimgrad::torch_ops {

inline constexpr std::size_t kLeastKept = std::size_t{1} << 20;
inline constexpr std::size_t kMostKept = std::size_t{128} << 20;
inline constexpr std::size_t kMostUnpackedCached = std::size_t{32} << 20;

// Like at::empty with the type, sizes and memory format given, on the CPU.
at::Tensor recycled_empty(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format);
// Like at::empty_like, of a tensor on the CPU.
at::Tensor recycled_empty_like(const at::Tensor& like);

// Like at::empty_strided on the CPU, for what backward unpacks and needs for a moment. It has
// memory of its own and keeps less of it, kMostUnpackedCached: packing saved tensors is for a low
// peak. So there what is left behind serves smaller results, too, and all that is too small for a
// result is given back before it gets memory.
at::Tensor recycled_empty_unpacked(at::IntArrayRef sizes, at::IntArrayRef strides,
                                   at::ScalarType type);

// What is kept now, in bytes; and all of it given back to torch's allocator. Returns how many
// bytes.
std::size_t recycled_bytes();
std::size_t release_recycled();

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_RECYCLED_MEMORY_H_
