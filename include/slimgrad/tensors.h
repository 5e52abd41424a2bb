// Operations on tensors: statistics, fits, quantizing, pruning and packing, with the names, the
// defaults and, to the bit, the results of the Python package. Tensors are float32, bfloat16 or
// float16, of any layout, on any device; measure.h and apply.h have the rules.
//
// **Seeds.** The result depends on the seed and the elements' order in memory (of a tensor with
// gaps: on the order of its dimensions), never on threads or CPU. A call that draws and has no seed
// takes one from torch's generator, so that torch::manual_seed() reproduces a run.
//
// **Gradients.** quantize(), prune() and pack() have no derivative: they throw for a tensor that
// requires a gradient while gradients are recorded.
//
// Throws InvalidArgument for misuse. Functions may be called from several threads at once.
#ifndef SLIMGRAD_TENSORS_H_
#define SLIMGRAD_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <slimgrad/distribution.h>
#include <slimgrad/float_format.h>
#include <slimgrad/steps.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment.h>

namespace slimgrad {

// All statistics of a tensor in one pass, on all of torch's threads. The result does not depend on
// their number. A tensor that fills its storage is not copied.
TensorStats measure(const at::Tensor& x);

// The maximum-likelihood member of the family for the finite non-zero values of `x`, which may be
// float64, too.
Distribution fit(const at::Tensor& x, Family family);

// A law at every value of a tensor, as float64.
at::Tensor pdf(const Distribution& distribution, const at::Tensor& x);
at::Tensor cdf(const Distribution& distribution, const at::Tensor& x);
at::Tensor quantile(const Distribution& distribution, const at::Tensor& p);

// ks_distance() and wasserstein_distance() of measure.h, to the values of a tensor.
double ks(const Distribution& distribution, const at::Tensor& x);
double wasserstein(const Distribution& distribution, const at::Tensor& x, int p = 1);

// `x` rounded to `scale` times the grid of `format`, in the type of `x`; quantize_() in place.
at::Tensor quantize(const at::Tensor& x, const FloatFormat& format, double scale,
                    Rounding rounding = Rounding::kNearest, Underflow underflow = Underflow::kZero,
                    std::optional<std::uint64_t> seed = std::nullopt);
at::Tensor quantize_(at::Tensor x, const FloatFormat& format, double scale,
                     Rounding rounding = Rounding::kNearest, Underflow underflow = Underflow::kZero,
                     std::optional<std::uint64_t> seed = std::nullopt);

// Stochastic pruning; prune_() in place.
at::Tensor prune(const at::Tensor& x, double threshold,
                 std::optional<std::uint64_t> seed = std::nullopt);
at::Tensor prune_(at::Tensor x, double threshold, std::optional<std::uint64_t> seed = std::nullopt);

// prune() and then quantize(), in one pass that draws once for both.
at::Tensor prune_quantize(const at::Tensor& x, double threshold, const FloatFormat& format,
                          double scale, Rounding rounding = Rounding::kNearest,
                          Underflow underflow = Underflow::kZero,
                          std::optional<std::uint64_t> seed = std::nullopt);
at::Tensor prune_quantize_(at::Tensor x, double threshold, const FloatFormat& format, double scale,
                           Rounding rounding = Rounding::kNearest,
                           Underflow underflow = Underflow::kZero,
                           std::optional<std::uint64_t> seed = std::nullopt);

// A tensor at format.bits() bits per element.
struct PackedTensor {
  at::Tensor data;  // the bytes, uint8
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
  FloatFormat format;
  double scale;

  std::int64_t numel() const;
  std::size_t nbytes() const { return data.nbytes(); }  // ceil(numel() * bits / 8)
  // The values, contiguous, in the type of the packed tensor or in `type`.
  at::Tensor unpack(std::optional<at::ScalarType> type = std::nullopt) const;
};

// pack(x, ...).unpack() is quantize(x.contiguous(), ...), bit for bit. Throws InvalidArgument for
// NaN and Inf, which have no codes.
PackedTensor pack(const at::Tensor& x, const FloatFormat& format, double scale,
                  Rounding rounding = Rounding::kNearest, Underflow underflow = Underflow::kZero,
                  std::optional<std::uint64_t> seed = std::nullopt);

// steps() of steps.h for any pointwise function of a tensor. Its derivative is taken by autograd in
// float64 at `num_samples` points of the interval and joined by straight lines, so a jump is
// smeared over one of these cells. `even` promises f'(-x) = f'(x): the table is then one over |x|.
using PointwiseFunction = std::function<at::Tensor(const at::Tensor&)>;
StepTable steps(const PointwiseFunction& function, int bits = 3, double low = -10, double high = 10,
                StepWeight weight = StepWeight::kUniform, bool even = false,
                std::int64_t num_samples = 8193);

}  // namespace slimgrad

#endif  // SLIMGRAD_TENSORS_H_
