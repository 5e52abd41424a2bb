// The invertible mode of GELU, SiLU and Mish: keeps the output, which the next layer often keeps
// anyway, and one bit an element. It saves memory exactly where the output is kept by somebody else
// too, such as a linear layer behind; where nobody else keeps it, it costs a bit more than torch.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "formats/fewbit.h"
#include "kernels/dispatch.h"
#include "kernels/invertible.h"
#include "math/inverse_table.h"
#include "torch/activation.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit_ops.h"
#include "torch/second_backward.h"

namespace slimgrad::torch_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kBackward = "invertible_backward";

void check_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes) {
  check_float_dtype(y, kBackward);
  check(grad.scalar_type() == y.scalar_type() && grad.sym_sizes() == y.sym_sizes(), kBackward,
        "a gradient with the output's dtype and shape", grad.toString(), grad.sym_sizes());
  check(codes.scalar_type() == at::kInt && codes.dim() == 1 &&
            codes.sym_numel() == num_code_words(y.sym_numel(), 1),
        kBackward, "one-bit codes of the output's size", codes.sym_sizes());
}

template <typename T>
void multiply_dense(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                    const InverseTable& table, const at::Tensor& result) {
  const auto size = static_cast<std::size_t>(y.numel());
  const std::span gradient(static_cast<const T*>(grad.const_data_ptr()), size);
  const std::span outputs(static_cast<const T*>(y.const_data_ptr()), size);
  const std::span to(static_cast<T*>(result.mutable_data_ptr()), size);
  const std::span words(static_cast<const std::uint32_t*>(codes.const_data_ptr()),
                        static_cast<std::size_t>(codes.numel()));
  at::parallel_for(
      0, static_cast<std::int64_t>(fewbit::num_blocks(size)), 64,
      [&](std::int64_t first_block, std::int64_t last_block) {
        const auto first = static_cast<std::size_t>(first_block);
        const auto last = static_cast<std::size_t>(last_block);
        const std::size_t begin = first * fewbit::kBlockValues;
        const std::size_t count = std::min(last * fewbit::kBlockValues, size) - begin;
        kernels::multiply_slopes<T>(
            gradient.subspan(begin, count), outputs.subspan(begin, count),
            words.subspan(first * fewbit::block_words(1), (last - first) * fewbit::block_words(1)),
            table, to.subspan(begin, count));
      });
}

at::Tensor invertible_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                               std::string_view name) {
  kernels::obey_environment();
  check_backward(grad, y, codes);
  check(y.is_non_overlapping_and_dense(), kBackward, "a dense output", y.strides());
  const InverseTable& table = inverse_table(name);
  at::Tensor result = at::empty_like(y);
  const at::Tensor dense = grad.strides() == y.strides() ? grad : result.copy_(grad);
  const at::Tensor plain_codes = codes.contiguous();
  switch (y.scalar_type()) {
    case at::kBFloat16:
      multiply_dense<BFloat16Bits>(dense, y, plain_codes, table, result);
      break;
    case at::kHalf:
      multiply_dense<Float16Bits>(dense, y, plain_codes, table, result);
      break;
    default:
      multiply_dense<float>(dense, y, plain_codes, table, result);
  }
  return result;
}

at::Tensor invertible_backward_meta(const at::Tensor& grad, const at::Tensor& y,
                                    const at::Tensor& codes, std::string_view) {
  check_backward(grad, y, codes);
  return at::empty_like(y);
}

at::Tensor plain_activation(const at::Tensor& x, std::string_view name) {
  check_float_dtype(x, "invertible_activation");
  inverse_table(name);  // refuses what cannot be inverted
  at::Tensor y = at::empty_like(x);
  Activation("invertible_activation", name, {}).apply(x, y);
  return y;
}

// ---- autograd ----------------------------------------------------------------------------------

at::Tensor call_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                         std::string_view name) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("slimgrad::invertible_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, std::string_view)>();
  return op.call(grad, y, codes, name);
}

struct InvertibleActivation : torch::autograd::Function<InvertibleActivation> {
  static constexpr bool is_traceable = true;  // for compiled autograd

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::string name) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("slimgrad::fewbit_forward", "")
                               .typed<std::tuple<at::Tensor, at::Tensor>(
                                   const at::Tensor&, std::string_view, at::ArrayRef<double>,
                                   at::ArrayRef<double>, bool)>();
    const double border = inverse_table(name).minimizer;
    auto [y, codes] = op.call(x, name, {}, border, false);
    context->save_for_backward({y, codes});
    context->saved_data["name"] = name;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list result(2);
    if (!grads[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const std::string name = context->saved_data["name"].toStringRef();
    {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      result[0] = call_backward(grads[0], saved[0], saved[1], name);
    }
    refuse_second_backward(result[0], grads[0]);
    return result;
  }
};

at::Tensor invertible_activation_autograd(const at::Tensor& x, std::string_view name) {
  if (at::GradMode::is_enabled() && x.requires_grad())
    return InvertibleActivation::apply(x, std::string(name));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("slimgrad::invertible_activation", "")
                             .typed<at::Tensor(const at::Tensor&, std::string_view)>();
  return op.call(x, name);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("invertible_backward", ValueErrors<&invertible_backward>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("invertible_backward", ValueErrors<&invertible_backward_meta>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("invertible_activation", ValueErrors<&plain_activation>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("invertible_activation", ValueErrors<&invertible_activation_autograd>::call);
}

}  // namespace slimgrad::torch_ops
