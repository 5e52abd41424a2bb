// The ops quantize, prune and prune_quantize: out of place and in place (name_).
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/errors.h"
#include "torch/fresh_seed.h"
#include "torch/no_gradient.h"

namespace slimgrad::torch_ops {
namespace {

struct OpTreatment {
  const char* op;  // for errors
  Treatment treatment;
};

// Both ways of each op: by kernels of the CPU or of a device, on any device, and for shapes alone.
template <auto apply>
struct Kernels {
  static at::Tensor fresh(const OpTreatment& applied, const at::Tensor& x) {
    check_float_dtype(x, applied.op);
    const at::Tensor dense = is_dense(x) ? x : x.contiguous();
    const at::Tensor out = at::empty_like(dense);
    apply(applied, dense, out);
    return out;
  }
  static void in_place(const OpTreatment& applied, at::Tensor& x) {
    check_float_dtype(x, applied.op);
    const at::Tensor dense = is_dense(x) ? x : x.contiguous();
    apply(applied, dense, dense);
    if (!is_dense(x)) x.copy_(dense);
  }
};
void on_cpu(const OpTreatment& applied, const at::Tensor& in, const at::Tensor& out) {
  apply_cpu(applied.op, applied.treatment, in, out);
}
void on_device(const OpTreatment& applied, const at::Tensor& in, const at::Tensor& out) {
  apply_device(applied.op, applied.treatment, in, out);
}

struct Aten {
  static at::Tensor fresh(const OpTreatment& applied, const at::Tensor& x) {
    return apply_aten(applied.op, applied.treatment, x);
  }
  static void in_place(const OpTreatment& applied, at::Tensor& x) {
    x.copy_(apply_aten(applied.op, applied.treatment, x));
  }
};

struct Shapes {
  static at::Tensor fresh(const OpTreatment& applied, const at::Tensor& x) {
    check_float_dtype(x, applied.op);
    return is_dense(x) ? at::empty_like(x) : at::empty_like(x, {}, at::MemoryFormat::Contiguous);
  }
  static void in_place(const OpTreatment& applied, at::Tensor& x) {
    check_float_dtype(x, applied.op);
  }
};

template <typename Seed>
OpTreatment quantize_with(std::int64_t exponent_bits, std::int64_t mantissa_bits, double scale,
                          std::string_view rounding, std::string_view underflow, Seed seed) {
  const Quantizer quantizer =
      quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow);
  return {"quantize",
          {.quantizer = quantizer, .seed = seed_or_draw(seed, quantizer_draws(quantizer))}};
}

template <typename Seed>
OpTreatment prune_with(double threshold, Seed seed) {
  return {"prune", {.threshold = threshold, .seed = seed_or_draw(seed, true)}};
}

template <typename Seed>
OpTreatment prune_quantize_with(double threshold, std::int64_t exponent_bits,
                                std::int64_t mantissa_bits, double scale, std::string_view rounding,
                                std::string_view underflow, Seed seed) {
  return {"prune_quantize",
          {.threshold = threshold,
           .quantizer = quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow),
           .seed = seed_or_draw(seed, true)}};
}

// way(with(arguments), x) as functions with the signatures of the schemas.
template <auto way, auto with>
struct Op;
template <typename Result, typename X, typename... Args, Result (*way)(const OpTreatment&, X),
          OpTreatment (*with)(Args...)>
struct Op<way, with> {
  static Result call(X x, Args... args) { return way(with(args...), x); }
};

template <typename Way, typename Seed>
void register_ways(torch::Library& m) {
  constexpr auto kQuantize = &quantize_with<Seed>;
  constexpr auto kPrune = &prune_with<Seed>;
  constexpr auto kBoth = &prune_quantize_with<Seed>;
  m.impl("quantize", ValueErrors<&Op<&Way::fresh, kQuantize>::call>::call);
  m.impl("quantize_", ValueErrors<&Op<&Way::in_place, kQuantize>::call>::call);
  m.impl("prune", ValueErrors<&Op<&Way::fresh, kPrune>::call>::call);
  m.impl("prune_", ValueErrors<&Op<&Way::in_place, kPrune>::call>::call);
  m.impl("prune_quantize", ValueErrors<&Op<&Way::fresh, kBoth>::call>::call);
  m.impl("prune_quantize_", ValueErrors<&Op<&Way::in_place, kBoth>::call>::call);
}

std::vector<std::int64_t> parse_float_choice_op(std::string_view text) {
  const std::optional<FloatChoice> choice = parse_float_choice(text);
  if (!choice) return {};
  if (!choice->format) return {choice->bits};
  return {choice->bits, choice->format->exponent_bits(), choice->format->mantissa_bits()};
}

}  // namespace

void register_apply_on_device(torch::Library& m) {
  register_ways<Kernels<&on_device>, std::optional<std::int64_t>>(m);
}

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  register_ways<Kernels<&on_cpu>, std::optional<std::int64_t>>(m);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  register_ways<Aten, std::optional<std::int64_t>>(m);
  m.impl("parse_float_choice", parse_float_choice_op);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) { register_ways<Shapes, std::optional<c10::SymInt>>(m); }
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* name :
       {"quantize", "quantize_", "prune", "prune_", "prune_quantize", "prune_quantize_"})
    m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops
