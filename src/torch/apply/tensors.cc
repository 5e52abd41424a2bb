// The functions of <slimgrad/tensors.h> that are calls of ops, with the errors of C++.
#include <slimgrad/tensors.h>

#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/find_op.h"

namespace slimgrad {
namespace {

using torch_ops::check_dense;
using torch_ops::check_values;
using torch_ops::find_op;
using torch_ops::invalid_arguments;

using Seed = std::optional<std::uint64_t>;
using OpSeed = std::optional<c10::SymInt>;

OpSeed op_seed(Seed seed) {
  if (!seed) return std::nullopt;
  return c10::SymInt(static_cast<std::int64_t>(*seed));
}

at::Tensor call_pointwise(const char* op, const char* name, const Distribution& distribution,
                          const at::Tensor& x) {
  check_values(x, name);
  check(!x.is_complex(), name, "x to be real", c10::toString(x.scalar_type()));
  const auto found =
      find_op<at::Tensor(const at::Tensor&, std::string_view, at::ArrayRef<double>)>(op);
  return invalid_arguments(
      [&] { return found.call(x, family_name(distribution.family()), distribution.params()); });
}

using QuantizeSignature = at::Tensor(const at::Tensor&, std::int64_t, std::int64_t, double,
                                     std::string_view, std::string_view, OpSeed);
at::Tensor call_quantizing(const c10::TypedOperatorHandle<QuantizeSignature>& op,
                           const at::Tensor& x, const FloatFormat& format, double scale,
                           Rounding rounding, Underflow underflow, Seed seed) {
  return invalid_arguments([&] {
    return op.call(x, format.exponent_bits(), format.mantissa_bits(), scale,
                   rounding_name(rounding), underflow_name(underflow), op_seed(seed));
  });
}

}  // namespace

// ---- distributions -----------------------------------------------------------------------------

Distribution fit(const at::Tensor& x, Family family) {
  check_values(x, "fit");
  static const auto op = find_op<at::Tensor(const at::Tensor&, std::string_view)>("slimgrad::fit");
  const at::Tensor params = invalid_arguments([&] { return op.call(x, family_name(family)); });
  const double* const first = params.const_data_ptr<double>();
  return Distribution(family, std::vector<double>(first, first + params.numel()));
}

at::Tensor pdf(const Distribution& distribution, const at::Tensor& x) {
  return call_pointwise("slimgrad::density", "pdf", distribution, x);
}

at::Tensor cdf(const Distribution& distribution, const at::Tensor& x) {
  return call_pointwise("slimgrad::cdf", "cdf", distribution, x);
}

at::Tensor quantile(const Distribution& distribution, const at::Tensor& p) {
  return call_pointwise("slimgrad::quantile", "quantile", distribution, p);
}

double ks(const Distribution& distribution, const at::Tensor& x) {
  return call_pointwise("slimgrad::ks_distance", "ks", distribution, x).item<double>();
}

double wasserstein(const Distribution& distribution, const at::Tensor& x, int p) {
  check_values(x, "wasserstein");
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, std::string_view, at::ArrayRef<double>, std::int64_t)>(
          "slimgrad::wasserstein_distance");
  return invalid_arguments([&] {
    return op.call(x, family_name(distribution.family()), distribution.params(), p).item<double>();
  });
}

// ---- quantizing and pruning --------------------------------------------------------------------

at::Tensor quantize(const at::Tensor& x, const FloatFormat& format, double scale, Rounding rounding,
                    Underflow underflow, Seed seed) {
  check_dense(x, "quantize");
  static const auto op = find_op<QuantizeSignature>("slimgrad::quantize");
  return call_quantizing(op, x, format, scale, rounding, underflow, seed);
}

at::Tensor quantize_(at::Tensor x, const FloatFormat& format, double scale, Rounding rounding,
                     Underflow underflow, Seed seed) {
  check_dense(x, "quantize_");
  static const auto op =
      find_op<void(at::Tensor&, std::int64_t, std::int64_t, double, std::string_view,
                   std::string_view, OpSeed)>("slimgrad::quantize_");
  invalid_arguments([&] {
    op.call(x, format.exponent_bits(), format.mantissa_bits(), scale, rounding_name(rounding),
            underflow_name(underflow), op_seed(seed));
  });
  return x;
}

at::Tensor prune(const at::Tensor& x, double threshold, Seed seed) {
  check_dense(x, "prune");
  static const auto op = find_op<at::Tensor(const at::Tensor&, double, OpSeed)>("slimgrad::prune");
  return invalid_arguments([&] { return op.call(x, threshold, op_seed(seed)); });
}

at::Tensor prune_(at::Tensor x, double threshold, Seed seed) {
  check_dense(x, "prune_");
  static const auto op = find_op<void(at::Tensor&, double, OpSeed)>("slimgrad::prune_");
  invalid_arguments([&] { op.call(x, threshold, op_seed(seed)); });
  return x;
}

at::Tensor prune_quantize(const at::Tensor& x, double threshold, const FloatFormat& format,
                          double scale, Rounding rounding, Underflow underflow, Seed seed) {
  check_dense(x, "prune_quantize");
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, double, std::int64_t, std::int64_t, double,
                         std::string_view, std::string_view, OpSeed)>("slimgrad::prune_quantize");
  return invalid_arguments([&] {
    return op.call(x, threshold, format.exponent_bits(), format.mantissa_bits(), scale,
                   rounding_name(rounding), underflow_name(underflow), op_seed(seed));
  });
}

at::Tensor prune_quantize_(at::Tensor x, double threshold, const FloatFormat& format, double scale,
                           Rounding rounding, Underflow underflow, Seed seed) {
  check_dense(x, "prune_quantize_");
  static const auto op =
      find_op<void(at::Tensor&, double, std::int64_t, std::int64_t, double, std::string_view,
                   std::string_view, OpSeed)>("slimgrad::prune_quantize_");
  invalid_arguments([&] {
    op.call(x, threshold, format.exponent_bits(), format.mantissa_bits(), scale,
            rounding_name(rounding), underflow_name(underflow), op_seed(seed));
  });
  return x;
}

// ---- packing -----------------------------------------------------------------------------------

PackedTensor pack(const at::Tensor& x, const FloatFormat& format, double scale, Rounding rounding,
                  Underflow underflow, Seed seed) {
  check_dense(x, "pack");
  static const auto op = find_op<QuantizeSignature>("slimgrad::pack");
  return {call_quantizing(op, x, format, scale, rounding, underflow, seed), x.sizes().vec(),
          x.scalar_type(), format, scale};
}

std::int64_t PackedTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

at::Tensor PackedTensor::unpack(std::optional<at::ScalarType> type) const {
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, std::int64_t, std::int64_t, double,
                         at::ScalarType)>("slimgrad::unpack");
  return invalid_arguments([&] {
    return op.call(data, c10::fromIntArrayRefSlow(shape), format.exponent_bits(),
                   format.mantissa_bits(), scale, type.value_or(dtype));
  });
}

}  // namespace slimgrad
