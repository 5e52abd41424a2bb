// The tensors that ranks of a DiLoCo share: copies in float32 beside those of the model.
#ifndef SLIMGRAD_RUNTIME_OUTER_SHARED_TENSORS_H_
#define SLIMGRAD_RUNTIME_OUTER_SHARED_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include <slimgrad/diloco.h>

namespace slimgrad::outer {

// Copies are float32, contiguous, on the CPU.
struct SharedTensor {
  std::string name;
  bool is_buffer = false;
  std::int64_t key = 0;  // names it for random draws
  at::Tensor in_model;
  at::Tensor shared = {};
  at::Tensor momentum = {};  // undefined: none
  at::Tensor residual = {};  // what was not sent; undefined: none

  // The model's values now; may be the model's own memory.
  at::Tensor now() const;
  // How far the model is from the shared values, in its type: zero at the beginning of a round.
  at::Tensor distance(const at::Tensor& now) const;
  // Moves the shared values by the mean distance, which is written to. A buffer's become the mean.
  void move(const at::Tensor& mean, const OuterOptions& outer);
  // The model takes up the shared values, and keeps what it did since it had `handed_in`; if that
  // is undefined, it becomes equal to them.
  void take_up(const at::Tensor& handed_in) const;
};

// The tensors of a model: parameters that require a gradient, and buffers of float types, each
// once. Throws InvalidArgument for what cannot be exchanged.
std::vector<SharedTensor> shared_tensors(const DiLoCoTensors& tensors, const DiLoCoOptions& options,
                                         std::uint64_t seed);

// For each fragment the places of its tensors, in their order: parameters of a module stay
// together, the largest module goes to the fragment with the fewest values so far, and so on.
// Buffers are in the last. Throws InvalidArgument if there are fewer modules than fragments.
std::vector<std::vector<std::size_t>> fragments_of(const std::vector<SharedTensor>& tensors,
                                                   std::int64_t count);

}  // namespace slimgrad::outer

#endif  // SLIMGRAD_RUNTIME_OUTER_SHARED_TENSORS_H_
