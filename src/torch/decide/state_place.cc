#include "torch/decide/state_place.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/cat.h>

#include "torch/decide/plan_tensor.h"
#include "torch/device/launcher.h"

namespace slimgrad::torch_ops {
namespace {

// The tensor itself changes its memory and its device, as set_data() does, but between any two.
void move_to(c10::Device device, const at::Tensor& state) {
  if (state.device() == device) return;
  const at::Tensor moved = state.detach().to(device).contiguous();
  at::TensorImpl* const self = state.unsafeGetTensorImpl();
  self->set_storage_keep_dtype(moved.storage());
  self->set_storage_offset(moved.storage_offset());
  self->_change_backend_component_keys(device);
}

}  // namespace

bool plans_on_device(const GateState& gate) {
  const GradientSettings& settings = gate.options.settings;
  const bool prunes = settings.prune != PruneKind::kNone &&
                      (settings.sparsity > 0 || gate.target > 0 || !gate.options.schedule.empty());
  return (prunes || settings.bits > 0) && settings.method != ThresholdMethod::kGennorm &&
         settings.method != ThresholdMethod::kNormal && settings.split != SplitMethod::kNormal &&
         settings.scale_method != ScaleMethod::kPredicted;
}

bool is_on_device(const at::Tensor& state) {
  return state.defined() && !state.is_cpu() && has_device_kernels(state.device().type());
}

void bring_state_to(c10::Device device, const at::Tensor& plan, const at::Tensor& stats,
                    std::string_view op) {
  if (plan.defined() && stats.defined() && plan.device() == device && stats.device() == device)
    return;
  const bool is_device = has_device_kernels(device.type());
  if (!is_device && !is_on_device(plan) && !is_on_device(stats)) return;
  const auto lock = lock_plans();
  check_layer_stats(stats, op);
  const bool goes = is_device && plans_on_device(read_plan(plan, op));
  const c10::Device to = goes ? device : c10::Device(c10::kCPU);
  move_to(to, plan);
  move_to(to, stats);
}

void bring_state(const at::Tensor& x, const at::Tensor& plan, const at::Tensor& stats,
                 std::string_view op) {
  if (at::isTensorSubclassLike(x) || x.is_meta() || !plan.defined() || !stats.defined()) return;
  if (at::isTensorSubclassLike(plan) || at::isTensorSubclassLike(stats)) return;
  bring_state_to(x.device(), plan, stats, op);
}

at::Tensor on_host(const at::Tensor& state) {
  return is_on_device(state) ? state.detach().to(at::kCPU) : state;
}

HostCopies::HostCopies(std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)), here_(tensors_) {
  for (std::size_t first = 0; first < tensors_.size(); ++first) {
    if (!is_on_device(here_[first])) continue;
    const c10::Device device = tensors_[first].device();
    std::vector<std::size_t> places;
    std::vector<at::Tensor> beside;
    for (std::size_t i = first; i < tensors_.size(); ++i)
      if (tensors_[i].device() == device) {
        places.push_back(i);
        beside.push_back(tensors_[i]);
      }
    const at::Tensor all = at::cat(beside).to(at::kCPU);
    std::int64_t begin = 0;
    for (const std::size_t i : places) {
      here_[i] = all.narrow(0, begin, tensors_[i].numel());
      begin += tensors_[i].numel();
    }
  }
}

void HostCopies::write_back(std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i)
    if (!here_[i].is_same(tensors_[i])) tensors_[i].copy_(here_[i], true);
}

}  // namespace slimgrad::torch_ops
