#include "torch/no_gradient.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <string>
#include <vector>

namespace slimgrad::torch_ops {
namespace {

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
}

void refuse_gradients(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    const auto* alias = arguments[i].alias_info();
    for (const at::Tensor& tensor : tensors_of(value)) {
      if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
        const std::string name = op.schema().name();
        C10_THROW_ERROR(ValueError, "[" + name.substr(name.find("::") + 2) +
                                        "] expected a tensor that does not require a gradient, as "
                                        "this has no derivative; pass x.detach(), or compress the "
                                        "gradients of a model with slimgrad.compress");
      }
      if (alias != nullptr && alias->isWrite()) written.push_back(tensor);
    }
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  for (const at::Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

torch::CppFunction no_gradient() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>();
}

}  // namespace slimgrad::torch_ops
