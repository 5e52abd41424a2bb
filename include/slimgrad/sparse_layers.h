// Layers whose backward pass multiplies only what pruning leaves of the gradient, where that is
// faster. Forward is torch's, to the bit.
//
// Each of the two products of backward, for the gradients of the weight and of the input, has its
// own sparsity, threshold and random draw. A product that is not worth doing sparsely is done
// densely and exactly; the first backward passes measure which it is. The state is in five tensors
// that the caller owns and may save; backward writes them: do not run two backward passes through
// one layer at the same time. Double backward throws.
//
// Tensors on the CPU of float32, bfloat16 or float16 are multiplied sparsely, with sums in float32;
// others densely. Images may have their channels last or first. Draws are numbered in the order of
// the gradient's memory: the same run in the other layout draws differently, each reproducibly.
#ifndef SLIMGRAD_SPARSE_LAYERS_H_
#define SLIMGRAD_SPARSE_LAYERS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include <slimgrad/gradient_gate.h>

namespace slimgrad {

// A product whose settings do not prune uses the gradient as it comes, with its zeros.
struct SparseLayerState {
  at::Tensor weight_plan, weight_stats;  // new_gate_plan(), new_gate_stats()
  at::Tensor input_plan, input_stats;
  at::Tensor choice;  // new_sparse_choice()
};

// `always`: never dense, whatever it costs; for reproducing runs on other machines.
at::Tensor new_sparse_choice(bool always = false);

// The sparsity from which on a product is done sparsely: 1 if none pays, NaN while it is measured.
struct BreakEven {
  double weight, input;
};
BreakEven sparse_break_even(const at::Tensor& choice);

at::Tensor sparse_linear(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, const SparseLayerState& state,
                         std::int64_t stream = 0);
at::Tensor sparse_conv2d(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups,
                         const SparseLayerState& state, std::int64_t stream = 0);

// Sparse products keep memory for the next one, because fresh memory is slow: at most 64 MiB of
// workspace, for all threads together, and at most 128 MiB that results have left behind. While a
// product runs it needs up to 8 bytes for each element of the gradient, but cuts gradients of more
// than 32 MiB of that into pieces; a single image is not cut for the gradient of the input. What is
// larger than what may be kept goes back at once.
//
// kept_memory(): bytes kept now. release_memory() gives all of it back and returns how many bytes;
// from any thread, at any time: what a running product uses stays until it has ended.
std::size_t kept_memory();
std::size_t release_memory();

}  // namespace slimgrad

#endif  // SLIMGRAD_SPARSE_LAYERS_H_
