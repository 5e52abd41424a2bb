// The planning functions as ops: a tensor of statistics or a few numbers in, a small float64 tensor
// out. They run on the host; statistics on another device are brought over.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <slimgrad/slimgrad.h>

#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/measure/stats_tensor.h"

namespace slimgrad::torch_ops {
namespace {

at::TensorOptions float64() { return at::TensorOptions().dtype(at::kDouble); }

at::Tensor tensor_of(std::initializer_list<double> values) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, float64());
  std::copy(values.begin(), values.end(), result.data_ptr<double>());
  return result;
}

at::Tensor tensor_of(const std::vector<double>& values) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, float64());
  std::copy(values.begin(), values.end(), result.data_ptr<double>());
  return result;
}

at::Tensor scalar_of(double value) { return tensor_of({value}).squeeze(0); }

// ---- distributions -----------------------------------------------------------------------------

Sample sample_of(const at::Tensor& x, const char* op) {
  if (x.scalar_type() == at::kDouble) {
    const at::Tensor values = x.detach().cpu().contiguous();
    return Sample(std::span(values.data_ptr<double>(), static_cast<std::size_t>(values.numel())));
  }
  check_float_dtype(x, op);
  const at::Tensor values = x.detach().to(at::kCPU, at::kFloat).contiguous();
  return Sample(std::span(values.data_ptr<float>(), static_cast<std::size_t>(values.numel())));
}

Distribution distribution_of(std::string_view family, at::ArrayRef<double> params) {
  return Distribution(parse_family(family), params.vec());
}

at::Tensor fit_op(const at::Tensor& x, std::string_view family) {
  const Family parsed = parse_family(family);
  if (x.scalar_type() == at::kDouble) return tensor_of(fit(sample_of(x, "fit"), parsed).params());
  // Without the sorting, which distances need and fits do not.
  check_float_dtype(x, "fit");
  const at::Tensor values = x.detach().to(at::kCPU, at::kFloat).contiguous();
  const auto size = static_cast<std::size_t>(values.numel());
  return tensor_of(fit(std::span(values.const_data_ptr<float>(), size), parsed).params());
}

at::Tensor ks_distance_op(const at::Tensor& x, std::string_view family,
                          at::ArrayRef<double> params) {
  return scalar_of(ks_distance(sample_of(x, "ks"), distribution_of(family, params)));
}

at::Tensor wasserstein_distance_op(const at::Tensor& x, std::string_view family,
                                   at::ArrayRef<double> params, std::int64_t order) {
  return scalar_of(wasserstein_distance(sample_of(x, "wasserstein"),
                                        distribution_of(family, params), static_cast<int>(order)));
}

template <double (Distribution::*function)(double) const>
at::Tensor pointwise_op(const at::Tensor& x, std::string_view family, at::ArrayRef<double> params) {
  const Distribution distribution = distribution_of(family, params);
  at::Tensor result = x.detach().to(at::kCPU, at::kDouble, false, true).contiguous();
  double* values = result.data_ptr<double>();
  for (std::int64_t i = 0; i < result.numel(); ++i) values[i] = (distribution.*function)(values[i]);
  return result;
}

// ---- pruning -----------------------------------------------------------------------------------

at::Tensor threshold_op(const at::Tensor& stats, double sparsity, std::string_view method) {
  const Threshold found =
      threshold(stats_from_tensor(stats, "threshold"), sparsity, parse_threshold_method(method));
  return tensor_of({found.value, found.sparsity, found.at_threshold, found.survivors,
                    found.nothing_to_prune ? 1.0 : 0.0});
}

at::Tensor expected_sparsity_op(const at::Tensor& stats, double threshold,
                                std::string_view method) {
  return scalar_of(expected_sparsity(stats_from_tensor(stats, "expected_sparsity"), threshold,
                                     parse_threshold_method(method)));
}

at::Tensor expected_cosine_op(const at::Tensor& stats, double threshold, std::string_view method) {
  return scalar_of(expected_cosine(stats_from_tensor(stats, "expected_cosine"), threshold,
                                   parse_threshold_method(method)));
}

at::Tensor lognormal_stats_op(double log_mean, double log_std, double zero_fraction,
                              std::int64_t count) {
  check(count > 0, "lognormal_stats", "count > 0", count);
  return stats_to_tensor(
      lognormal_stats(log_mean, log_std, zero_fraction, static_cast<std::uint64_t>(count)));
}

// A row a layer: sparsity, threshold, cosine, whether it is at the cap.
at::Tensor allocate_op(at::TensorList layers, double sparsity, std::string_view objective,
                       std::optional<std::string_view> method, double cap,
                       at::IntArrayRef target_layers, at::ArrayRef<double> target_cosines) {
  check(target_layers.size() == target_cosines.size(), "allocate",
        "as many target cosines as target layers", target_cosines.size(), " and ",
        target_layers.size());
  std::vector<TensorStats> stats;
  for (const at::Tensor& layer : layers) stats.push_back(stats_from_tensor(layer, "allocate"));
  std::vector<CosineTarget> targets;
  for (std::size_t i = 0; i < target_layers.size(); ++i)
    targets.push_back({static_cast<std::size_t>(target_layers[i]), target_cosines[i]});
  std::vector<double> rows;
  for (const LayerAllocation& layer : allocate(
           stats, sparsity, parse_allocation_objective(objective),
           method ? std::optional(parse_threshold_method(*method)) : std::nullopt, cap, targets))
    rows.insert(rows.end(),
                {layer.sparsity, layer.threshold, layer.cosine, layer.at_cap ? 1.0 : 0.0});
  return tensor_of(rows).view({-1, 4});
}

// ---- formats and steps -------------------------------------------------------------------------

FloatFormat format_of(std::int64_t exponent_bits, std::int64_t mantissa_bits) {
  return FloatFormat(static_cast<int>(exponent_bits), static_cast<int>(mantissa_bits));
}

at::Tensor format_values_op(std::int64_t exponent_bits, std::int64_t mantissa_bits) {
  return tensor_of(format_of(exponent_bits, mantissa_bits).values());
}

double relative_error_op(std::int64_t exponent_bits, std::int64_t mantissa_bits, double log2_std) {
  return relative_error(format_of(exponent_bits, mantissa_bits), log2_std);
}

std::tuple<std::int64_t, std::int64_t> split_of(const FloatFormat& format) {
  return {format.exponent_bits(), format.mantissa_bits()};
}

std::tuple<std::int64_t, std::int64_t> best_format_op(std::int64_t bits, double log2_std_low,
                                                      double log2_std_high,
                                                      std::string_view method) {
  const auto width = static_cast<int>(bits);
  switch (parse_split_method(method)) {
    case SplitMethod::kLognormal:
      return split_of(best_format(width, log2_std_low, log2_std_high));
    case SplitMethod::kNormal:
      return split_of(best_format_of_normal(width, log2_std_of_range(log2_std_low, log2_std_high)));
    case SplitMethod::kEmpirical:
      break;
  }
  throw_invalid("best_format", "TensorStats for the method empirical", "a standard deviation");
}

ErrorMeasure parse_error(std::string_view name) {
  check(name == "relative" || name == "squared", "best_format", "error to be relative or squared",
        '\'', name, '\'');
  return name == "relative" ? ErrorMeasure::kRelative : ErrorMeasure::kSquared;
}

at::Tensor best_format_of_stats_op(const at::Tensor& stats, std::int64_t bits,
                                   std::string_view method, std::string_view scale,
                                   std::string_view rounding, std::string_view underflow,
                                   std::string_view error) {
  const FloatFormat best =
      best_format(static_cast<int>(bits), stats_from_tensor(stats, "best_format"),
                  {.method = parse_split_method(method),
                   .scale = parse_scale_method(scale),
                   .rounding = parse_rounding(rounding),
                   .underflow = parse_underflow(underflow),
                   .error = parse_error(error)});
  return tensor_of(
      {static_cast<double>(best.exponent_bits()), static_cast<double>(best.mantissa_bits())});
}

at::Tensor expected_error_op(const at::Tensor& stats, std::int64_t exponent_bits,
                             std::int64_t mantissa_bits, double scale, std::string_view rounding,
                             std::string_view underflow, std::string_view error) {
  return scalar_of(expected_error(
      stats_from_tensor(stats, "expected_error"),
      quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow), parse_error(error)));
}

at::Tensor gradient_scale_op(const at::Tensor& stats, std::int64_t exponent_bits,
                             std::int64_t mantissa_bits, std::string_view method) {
  return scalar_of(gradient_scale(stats_from_tensor(stats, "gradient_scale"),
                                  format_of(exponent_bits, mantissa_bits),
                                  parse_scale_method(method)));
}

std::tuple<at::Tensor, at::Tensor, double, bool> steps_op(std::string_view activation,
                                                          std::int64_t bits, double low,
                                                          double high, std::string_view weight) {
  const StepTable table =
      steps(activation, static_cast<int>(bits), low, high, parse_step_weight(weight));
  return {tensor_of(table.borders), tensor_of(table.levels), table.error, table.even};
}

// ---- shapes, for tracing -----------------------------------------------------------------------

at::Tensor meta_of(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kDouble));
}

at::Tensor fit_meta(const at::Tensor& x, std::string_view family) {
  return meta_of(x, {static_cast<std::int64_t>(parameter_names(parse_family(family)).size())});
}
at::Tensor ks_distance_meta(const at::Tensor& x, std::string_view, at::ArrayRef<double>) {
  return meta_of(x, {});
}
at::Tensor wasserstein_distance_meta(const at::Tensor& x, std::string_view, at::ArrayRef<double>,
                                     std::int64_t) {
  return meta_of(x, {});
}
at::Tensor pointwise_meta(const at::Tensor& x, std::string_view, at::ArrayRef<double>) {
  return at::empty_like(x, x.options().dtype(at::kDouble), at::MemoryFormat::Contiguous);
}
at::Tensor threshold_meta(const at::Tensor& stats, double, std::string_view) {
  return meta_of(stats, {5});
}
at::Tensor expected_meta(const at::Tensor& stats, double, std::string_view) {
  return meta_of(stats, {});
}
at::Tensor allocation_meta(at::TensorList layers, double, std::string_view,
                           std::optional<std::string_view>, double, at::IntArrayRef,
                           at::ArrayRef<double>) {
  return at::empty({static_cast<std::int64_t>(layers.size()), 4}, float64().device(at::kMeta));
}
at::Tensor best_format_of_stats_meta(const at::Tensor& stats, std::int64_t, std::string_view,
                                     std::string_view, std::string_view, std::string_view,
                                     std::string_view) {
  return meta_of(stats, {2});
}
at::Tensor expected_error_meta(const at::Tensor& stats, std::int64_t, std::int64_t, double,
                               std::string_view, std::string_view, std::string_view) {
  return meta_of(stats, {});
}
at::Tensor gradient_scale_meta(const at::Tensor& stats, std::int64_t, std::int64_t,
                               std::string_view) {
  return meta_of(stats, {});
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("fit", ValueErrors<&fit_op>::call);
  m.impl("ks_distance", ValueErrors<&ks_distance_op>::call);
  m.impl("wasserstein_distance", ValueErrors<&wasserstein_distance_op>::call);
  m.impl("density", ValueErrors<&pointwise_op<&Distribution::density>>::call);
  m.impl("cdf", ValueErrors<&pointwise_op<&Distribution::cdf>>::call);
  m.impl("quantile", ValueErrors<&pointwise_op<&Distribution::quantile>>::call);
  m.impl("threshold", ValueErrors<&threshold_op>::call);
  m.impl("expected_sparsity", ValueErrors<&expected_sparsity_op>::call);
  m.impl("expected_cosine", ValueErrors<&expected_cosine_op>::call);
  m.impl("lognormal_stats", ValueErrors<&lognormal_stats_op>::call);
  m.impl("allocate", ValueErrors<&allocate_op>::call);
  m.impl("format_values", ValueErrors<&format_values_op>::call);
  m.impl("relative_error", ValueErrors<&relative_error_op>::call);
  m.impl("best_format", ValueErrors<&best_format_op>::call);
  m.impl("best_format_of_stats", ValueErrors<&best_format_of_stats_op>::call);
  m.impl("expected_error", ValueErrors<&expected_error_op>::call);
  m.impl("gradient_scale", ValueErrors<&gradient_scale_op>::call);
  m.impl("steps", ValueErrors<&steps_op>::call);
}

TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("fit", ValueErrors<&fit_meta>::call);
  m.impl("ks_distance", ks_distance_meta);
  m.impl("wasserstein_distance", wasserstein_distance_meta);
  m.impl("density", pointwise_meta);
  m.impl("cdf", pointwise_meta);
  m.impl("quantile", pointwise_meta);
  m.impl("threshold", threshold_meta);
  m.impl("expected_sparsity", expected_meta);
  m.impl("expected_cosine", expected_meta);
  m.impl("allocate", allocation_meta);
  m.impl("best_format_of_stats", best_format_of_stats_meta);
  m.impl("expected_error", expected_error_meta);
  m.impl("gradient_scale", gradient_scale_meta);
}

}  // namespace slimgrad::torch_ops
