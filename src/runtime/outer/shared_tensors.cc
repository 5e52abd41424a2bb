#include "runtime/outer/shared_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>

#include <slimgrad/seed.h>

#include "base/check.h"
#include "torch/checks.h"

namespace slimgrad::outer {
namespace {

constexpr char kMaker[] = "DiLoCo";

at::Tensor on_host(const at::Tensor& x) {
  return x.detach().to(at::kCPU).to(at::kFloat).contiguous();
}

}  // namespace

at::Tensor SharedTensor::now() const { return on_host(in_model); }

at::Tensor SharedTensor::distance(const at::Tensor& now) const {
  // Rounding to the model's type is no distance that the model has gone.
  at::Tensor distance = shared.to(in_model.scalar_type()).to(at::kFloat).sub(now);
  // A mask of infinities stays one.
  if (is_buffer) distance.masked_fill_(shared.eq(now), 0);
  return distance;
}

// Each operation rounds once, whatever the CPU and the number of threads: sums with a factor would
// be fused on some.
void SharedTensor::move(const at::Tensor& mean, const OuterOptions& outer) {
  if (is_buffer) {
    // Where no rank has moved the mean distance is 0.
    shared.sub_(mean);
    return;
  }
  at::Tensor step = mean;
  if (momentum.defined()) {
    momentum.mul_(outer.momentum).add_(mean);
    step = outer.nesterov ? mean.add_(momentum.mul(outer.momentum)) : momentum.clone();
  }
  shared.sub_(step.mul_(outer.lr));
}

void SharedTensor::take_up(const at::Tensor& handed_in) const {
  if (!handed_in.defined()) {
    in_model.detach().copy_(shared);
    return;
  }
  const at::Tensor trained_since = at::sub(now(), handed_in);
  in_model.detach().copy_(trained_since.add_(shared));
}

std::vector<SharedTensor> shared_tensors(const DiLoCoTensors& tensors, const DiLoCoOptions& options,
                                         std::uint64_t seed) {
  std::vector<SharedTensor> found;
  std::set<const void*> known;
  std::set<std::string> names;
  const auto add = [&](const std::string& name, const at::Tensor& x, bool is_buffer) {
    torch_ops::check_values(x, kMaker, name);
    if (!known.insert(x.unsafeGetTensorImpl()).second) return;  // tied
    check(names.insert(name).second, kMaker, "names of tensors that differ", name, " twice");
    SharedTensor one{.name = name, .is_buffer = is_buffer, .in_model = x};
    one.key = static_cast<std::int64_t>(derive_seed(seed, {"DiLoCo", std::string_view(name)}));
    one.shared = on_host(x).clone();
    const bool is_coded = x.numel() >= options.codec.min_elements && !options.codec.is_exact();
    if (!is_buffer && options.outer.momentum != 0) one.momentum = at::zeros_like(one.shared);
    if (!is_buffer && options.codec.error_feedback && is_coded)
      one.residual = at::zeros_like(one.shared);
    found.push_back(std::move(one));
  };
  for (const auto& [name, x] : tensors.parameters) {
    if (x.defined() && !x.requires_grad()) continue;
    check(!x.defined() || torch_ops::is_float_dtype(x.scalar_type()), kMaker,
          "parameters of type float32, bfloat16 or float16", c10::toString(x.scalar_type()),
          " for ", name);
    add(name, x, false);
  }
  check(!found.empty(), kMaker, "a model with parameters that require a gradient", "none");
  for (const auto& [name, x] : tensors.buffers)
    if (x.defined() && torch_ops::is_float_dtype(x.scalar_type())) add(name, x, true);
  return found;
}

std::vector<std::vector<std::size_t>> fragments_of(const std::vector<SharedTensor>& tensors,
                                                   std::int64_t count) {
  struct Module {
    std::string name;
    std::int64_t num_values = 0;
    std::vector<std::size_t> places = {};
  };
  std::vector<Module> modules;
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    if (tensors[place].is_buffer) continue;
    const std::string& name = tensors[place].name;
    const std::size_t dot = name.rfind('.');
    const std::string owner = dot == std::string::npos ? "" : name.substr(0, dot);
    auto module = std::ranges::find(modules, owner, &Module::name);
    if (module == modules.end()) module = modules.insert(module, Module{owner});
    module->num_values += tensors[place].shared.numel();
    module->places.push_back(place);
  }
  const auto num_modules = static_cast<std::int64_t>(modules.size());
  check(count <= num_modules, kMaker, "fragments of at least one module each", count, " for ",
        num_modules, " modules with parameters");
  std::ranges::stable_sort(modules, std::greater(), &Module::num_values);
  std::vector<std::vector<std::size_t>> fragments(static_cast<std::size_t>(count));
  std::vector<std::int64_t> sizes(fragments.size());
  for (const Module& module : modules) {
    const auto lightest = std::ranges::min_element(sizes) - sizes.begin();
    const auto chosen = static_cast<std::size_t>(lightest);
    // A module of no values would not make a fragment less empty.
    sizes[chosen] += std::max<std::int64_t>(module.num_values, 1);
    fragments[chosen].insert(fragments[chosen].end(), module.places.begin(), module.places.end());
  }
  for (std::size_t place = 0; place < tensors.size(); ++place)
    if (tensors[place].is_buffer) fragments.back().push_back(place);
  for (auto& fragment : fragments) std::ranges::sort(fragment);
  return fragments;
}

}  // namespace slimgrad::outer
