// A tensor that backward will need, kept small until then: for autograd nodes of one's own in C++.
// saved_tensors.h does the same for everything that autograd saves.
//
// A node that needs its input in backward holds a SavedTensor instead of a SavedVariable:
//
//     saved_ = slimgrad::SavedTensor(x, {.bits = 4}, seed, calls++);        // in forward
//     const at::Tensor x = saved_.unpack();                                // in backward
//
// docs/saved.md has every bit of the format and what it costs. Values, not threads: a SavedTensor
// is immutable, and any number of threads may unpack it.
#ifndef SLIMGRAD_SAVED_TENSOR_H_
#define SLIMGRAD_SAVED_TENSOR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slimgrad {

struct SavedOptions {
  int bits = 8;   // 8, 4 or 2; 0: exactly, without its zeros
  int group = 0;  // values that share a scale: 16 to 512, a power of two; 0: by the bits
  bool is_stochastic = true;  // unbiased; otherwise to the nearest level. Neither with 0 bits
};

class SavedTensor {
 public:
  // Packs a tensor on the CPU of float32, bfloat16 or float16 and any layout. One that holds NaN or
  // Inf, and one that cannot be kept exactly in fewer bytes, is kept as it is. The draws are those
  // of `number` among all that the seed makes. Throws InvalidArgument.
  SavedTensor(const at::Tensor& x, const SavedOptions& options, std::uint64_t seed,
              std::uint64_t number = 0);

  // With the sizes, type and, if it was dense, the strides of the original. Throws c10::Error if
  // that was changed in place since, as torch does for what it saves.
  at::Tensor unpack() const;

  // What it holds in memory.
  std::size_t bytes() const { return packed_.nbytes(); }
  // Whether the tensor itself is held, because packing it was no use.
  bool is_plain() const { return way_ == Way::kPlain; }
  // Whether what comes back differs from what was given.
  bool is_rounded() const {
    return way_ == Way::kRounded || (way_ == Way::kCast && at::isFloatingType(type_));
  }

 private:
  friend class SavedTensors;
  enum class Way { kPlain, kRounded, kExact, kCast };
  // `packed` stands for x.
  SavedTensor(const at::Tensor& x, at::Tensor packed, Way way);

  at::Tensor packed_;
  Way way_ = Way::kPlain;
  SavedOptions options_;
  std::vector<std::int64_t> sizes_, strides_;
  at::ScalarType type_ = at::kFloat;
  c10::VariableVersion version_;
  std::uint32_t saved_version_ = 0;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_SAVED_TENSOR_H_
