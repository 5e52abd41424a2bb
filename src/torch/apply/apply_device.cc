// quantize, prune and prune_quantize by the kernels of src/device: one kernel, and one fill of
// memory where counts are wanted. Nothing waits for the device.
#include <ATen/core/Tensor.h>

#include "arrays/apply/loop_treatment.h"
#include "device/apply.h"
#include "torch/apply/apply.h"
#include "torch/device/launch.h"

namespace slimgrad::torch_ops {
namespace {

using device::Apply;
using device::Treats;

template <typename T>
void start_apply(Treats treats, const device::ApplyArguments<T>& arguments, const at::Tensor& on) {
  switch (treats) {
    case Treats::kQuantize:
      return start<Apply<T, Treats::kQuantize>>(arguments, on);
    case Treats::kPrune:
      return start<Apply<T, Treats::kPrune>>(arguments, on);
    case Treats::kPruneQuantize:
      return start<Apply<T, Treats::kPruneQuantize>>(arguments, on);
    case Treats::kDrop:
      return start<Apply<T, Treats::kDrop>>(arguments, on);
  }
}

}  // namespace

void apply_device(const char* op, const Treatment& treatment, const at::Tensor& in,
                  const at::Tensor& out, at::Tensor* counts) {
  if (counts != nullptr) *counts = filled(3, at::kLong, 0, in);
  with_element_type(in.scalar_type(), [&]<typename T>() {
    const kernels::LoopTreatment made = loop_treatment<T>(op, treatment);
    start_apply<T>(
        device::treats_of(made, treatment.drops),
        {.in = read_by_kernel<T>(in),
         .out = written_by_kernel<T>(out),
         .size = static_cast<std::uint64_t>(in.numel()),
         .counts = counts == nullptr ? nullptr : written_by_kernel<std::uint64_t>(*counts),
         .treatment = made},
        in);
  });
}

}  // namespace slimgrad::torch_ops
