// Layers whose backward pass multiplies only what pruning leaves of the gradient, where that should
// be faster. Forward is torch's, to the bit.
//
// Each of the two products of backward, for the gradients of the weight and of the input, has its
// own sparsity, threshold and random draw. A product is done sparsely where the gradient is at
// least as sparse as its break-even sparsity, and otherwise densely and exactly. A model of the
// costs with constants that were measured on one machine gives the break-even in the first backward
// pass that could be sparse; from then on it is state, for batches of other sizes too. So a seed
// gives one run, whatever else the machine does. time_sparse_ways() asks the clock instead, and
// set_sparse_ways() takes the user's word.
//
// The state is in five tensors that the caller owns and may save; backward writes them. They are on
// the CPU, but plans and statistics may follow gradients to a device that plans by itself.
// Two threads may run backward through one layer, as through one gate (gradient_gate.h). Double
// backward throws.
//
// Tensors on the CPU of float32, bfloat16 or float16 are multiplied sparsely, with sums in float32;
// others densely and exactly, but for a device with kernels: there the gradient is pruned as it was
// asked for, unless the way is kDense, and then multiplied densely. Images may have their channels
// last or first. Draws are numbered in the order of the gradient's memory: the same run in the
// other layout draws differently, each reproducibly.
#ifndef SLIMGRAD_SPARSE_LAYERS_H_
#define SLIMGRAD_SPARSE_LAYERS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/gradient_gate.h>

namespace slimgrad {

// A product whose settings do not prune uses the gradient as it comes, with its zeros.
struct SparseLayerState {
  at::Tensor weight_plan, weight_stats;  // new_gate_plan(), new_gate_stats()
  at::Tensor input_plan, input_stats;
  at::Tensor choice;  // new_sparse_choice()

  // The five in this order, as the ops take them, and back. from_list() throws InvalidArgument, in
  // the name of `op`, for another number of tensors.
  std::vector<at::Tensor> list() const {
    return {weight_plan, weight_stats, input_plan, input_stats, choice};
  }
  static SparseLayerState from_list(at::TensorList list, std::string_view op);
};

// `always`: sparse wherever that is possible, as long as no way is set by hand.
at::Tensor new_sparse_choice(bool always = false);

// How a product is done; kAuto: by its break-even sparsity. A product that could not be sparse (in
// warm-up, too small, of another type, not pruned) is dense whatever is set.
enum class SparseWay : std::int64_t { kAuto, kDense, kSparse };
std::string_view sparse_way_name(SparseWay way);  // "auto", "dense", "sparse"
SparseWay parse_sparse_way(std::string_view name);
// Sets the ways of the products that are given, instead of what new_sparse_choice() was told. Back
// at kAuto, a product has the break-even that it had before.
void set_sparse_ways(const at::Tensor& choice, std::optional<SparseWay> weight,
                     std::optional<SparseWay> input);

// Continues as a saved layer did: takes over the ways that were set, the break-evens and where they
// came from; `always` stays, and is returned in words if it differs. Throws InvalidArgument for a
// tensor that is no choice, and then nothing has changed. load_gate() does it for the plans.
std::vector<std::string> load_sparse_choice(const at::Tensor& choice, const at::Tensor& saved);

// While timing is on, backward passes do products at kAuto both ways; the sparse result counts.
// Turned off, each that was timed has the break-even of its best times. What was timed is state and
// the clock is not asked again. The passes count: to continue as if there had been none, copy the
// plans and statistics before and put them back.
void time_sparse_ways(const at::Tensor& choice, bool on);

// Where the break-even sparsity, or the way, comes from.
enum class ChosenBy : std::int64_t { kNobody, kModel, kTiming, kUser };
std::string_view chosen_by_name(ChosenBy by);  // "", "model", "tune", "user"

struct SparseProductReport {
  SparseWay setting;
  ChosenBy chosen_by;
  double break_even;                          // 1 if no sparsity pays, NaN before it is found
  bool was_sparse;                            // the last backward pass
  std::int64_t trials;                        // that were timed; then their best seconds:
  double dense_seconds;                       // of the dense product,
  double compress_seconds, multiply_seconds;  // sparse: compress + (1 - sparsity) multiply
};
struct SparseReport {
  SparseProductReport weight, input;
};
SparseReport sparse_report(const at::Tensor& choice);

// The sparsity from which on a product is done sparsely: 1 if none pays, NaN before it is found.
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

// Sparse products cache memory for the next one, because fresh memory is slow: at most 64 MiB of
// workspace and 128 MiB of freed results, for all threads together; larger blocks are returned at
// once. A running product needs up to 8 bytes for each element of the gradient; gradients that need
// more than 32 MiB are cut into pieces, but for the gradient of the input never within an image.
//
// cached_memory() returns the number of cached bytes. empty_cache() returns all of them to the
// system, and their number. Both may be called from any thread at any time; memory that a running
// product uses stays until it has ended.
std::size_t cached_memory();
std::size_t empty_cache();

}  // namespace slimgrad

#endif  // SLIMGRAD_SPARSE_LAYERS_H_
