#include <slimgrad/compress.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <set>
#include <utility>

#include <slimgrad/seed.h>

#include "base/check.h"
#include "runtime/compress/products.h"
#include "runtime/compress/selection.h"
#include "runtime/compress/summary.h"
#include "runtime/decide/state_tensors.h"
#include "runtime/state_version.h"
#include "torch/checks.h"
#include "torch/decide/pass_gradient.h"
#include "torch/fresh_seed.h"
#include "torch/second_backward.h"

namespace slimgrad {
namespace gating {
namespace {

constexpr const char* kCompress = "compress";
constexpr const char* kLoadState = "load_state";

void check_options(const CompressOptions& options) {
  const GradientSettings& settings = options.gate.settings;
  const bool prunes = settings.prune != PruneKind::kNone;
  const bool is_uniform = options.group.allocation == AllocationObjective::kUniform;
  check(prunes || settings.bits != 0, kCompress, "settings that prune or quantize",
        "neither of them");
  check(is_uniform || prunes, kCompress, "an allocation with settings that prune", "it without");
  check(options.gate.schedule.empty() || is_uniform, kCompress, "a schedule without an allocation",
        "both");
  check(is_uniform || settings.method != ThresholdMethod::kMean, kCompress,
        "another method than the mean with an allocation", "the mean, which has no cosine");
  check(!is_uniform || options.group.targets.empty(), kCompress, "targets with an allocation",
        "them without");
}

void check_targets(const GroupOptions& options, const std::vector<std::string>& names) {
  for (const auto& [target, cosine] : options.targets)
    check(std::ranges::any_of(names,
                              [&](const std::string& name) {
                                return name == target || name.starts_with(target + ".");
                              }),
          kCompress, "names of layers that have a gate in targets", target);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The weights of all layers that have gates: second ones would be behind the same products. They
// live as long as they are here, so that no other tensor has their address.
struct GatedWeights {
  std::mutex mutex;
  std::set<const c10::TensorImpl*> weights;
};
GatedWeights& gated_weights() {
  static GatedWeights gated;
  return gated;
}

}  // namespace

bool has_gates(const at::Tensor& weight) {
  GatedWeights& gated = gated_weights();
  const std::lock_guard lock(gated.mutex);
  return gated.weights.contains(weight.unsafeGetTensorImpl());
}

}  // namespace gating

// A weight, and the gates behind the products with it. The graph and the weight's hook share it.
struct Compression::Layer {
  struct Part {
    std::string name;
    at::Tensor plan, stats;  // undefined: no gate

    bool has_gate() const { return plan.defined(); }
  };
  gating::WeightAndBias weights;
  std::vector<Part> parts;
  std::int64_t stream;
  std::atomic<bool> is_removed = false;
  std::atomic<bool> has_passed = false;  // a gradient, since the last one of the weight
  unsigned hook = 0;                     // of the weight
};

// On the node that made a layer's output: what comes to that is the gradient of the output.
class Compression::Gate : public torch::autograd::FunctionPreHook {
 public:
  Gate(std::shared_ptr<Layer> layer, std::size_t first_part)
      : layer_(std::move(layer)), first_part_(first_part) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (layer_->is_removed) return grads;
    torch_ops::check_first_backward(gating::kCompress);
    layer_->has_passed = true;
    torch::autograd::variable_list result(grads.size());
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const Layer::Part& part = layer_->parts[first_part_ + i];
      result[i] = part.has_gate() && grads[i].defined()
                      ? torch_ops::pass_gradient(grads[i], part.plan, part.stats, layer_->stream)
                      : grads[i];
    }
    return result;
  }

  bool is_of(const Layer& layer) const { return layer_.get() == &layer; }

 private:
  const std::shared_ptr<Layer> layer_;
  const std::size_t first_part_;
};

Compression::Compression(Compression&&) noexcept = default;
Compression::~Compression() { remove(); }
Compression& Compression::operator=(Compression&& other) noexcept {
  remove();
  gates_ = std::move(other.gates_);
  left_ = std::move(other.left_);
  layers_ = std::exchange(other.layers_, {});
  return *this;
}

void Compression::place_gates(at::TensorList losses) {
  for (const at::Tensor& loss : losses)
    check(loss.defined() && loss.requires_grad(), gating::kCompress,
          "losses that require a gradient", "one that does not");
  if (gates_.has_news(false)) gates_.before_step();
  std::vector<gating::WeightAndBias> weights;
  for (const auto& layer : layers_) weights.push_back(layer->weights);
  for (const gating::ProductNode& product : gating::find_products(losses, weights)) {
    const std::shared_ptr<Layer>& layer = layers_[product.layer];
    const auto type = product.node->input_metadata(0).dtype().toScalarType();
    check(torch_ops::is_float_dtype(type), gating::kCompress,
          "outputs of layers of float32, bfloat16 or float16", type, " of ",
          layer->parts[product.first_part].name);
    const bool has_gate = std::ranges::any_of(product.node->pre_hooks(), [&](const auto& hook) {
      const auto* const gate = dynamic_cast<const Gate*>(hook.get());
      return gate != nullptr && gate->is_of(*layer);
    });
    if (!has_gate) product.node->add_pre_hook(std::make_unique<Gate>(layer, product.first_part));
  }
}

void Compression::backward(const at::Tensor& loss, const at::Tensor& gradient,
                           std::optional<bool> retain_graph) {
  place_gates(loss);
  loss.backward(gradient, retain_graph);
}

std::string Compression::summary() const {
  return gating::summary_text(reports(), left_, warnings());
}

nn::StateDict Compression::state() const {
  nn::StateDict state("State");
  for (const auto& [name, tensor] : state_tensors(gates_)) state.insert(name, tensor);
  runtime::add_version(state);
  return state;
}

std::vector<std::string> Compression::load_state(const nn::StateDict& state) {
  runtime::check_version(state, gating::kLoadState);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : state)
    if (item.key() != runtime::kVersionKey) tensors[item.key()] = item.value();
  const LoadedState loaded = load_state_tensors(gates_, tensors);
  std::vector<std::string> said;
  for (const auto& [words, names] : loaded.differences)
    said.push_back(gating::listed(names) + ": " + words);
  said.insert(said.end(), loaded.settings.begin(), loaded.settings.end());
  for (const std::string& name : loaded.missing)
    said.push_back(name + ": not in the saved state; this layer starts from its initial state");
  for (const std::string& name : loaded.unknown)
    said.push_back(name + ": in the saved state but not in this module; ignored");
  return said;
}

void Compression::remove() {
  gating::GatedWeights& gated = gating::gated_weights();
  const std::lock_guard lock(gated.mutex);
  for (const auto& layer : layers_) {
    gated.weights.erase(layer->weights.weight.unsafeGetTensorImpl());
    layer->is_removed = true;
    layer->weights.weight.remove_hook(layer->hook);
  }
  layers_.clear();
}

Compression compress(torch::nn::Module& module, CompressOptions options) {
  gating::check_options(options);
  gating::SelectedLayers selected = gating::select_layers(module, options.include, options.exclude);
  if (selected.layers.empty()) {
    std::vector<std::string> reasons;
    for (const auto& [name, why] : selected.left)
      reasons.push_back((name.empty() ? "(model)" : name) + ": " + why);
    throw_invalid(
        gating::kCompress, "a model with at least one convolution or linear layer to compress",
        "none; left alone: ", reasons.empty() ? "nothing found" : gating::listed(reasons));
  }
  options.group.method = options.gate.settings.method;
  options.gate.allocation = options.group.allocation;
  options.gate.dynamic_scale = options.group.growth_interval > 0;
  const std::uint64_t seed = options.gate.seed ? *options.gate.seed : torch_ops::fresh_seed();

  Compression compression(options.group);
  compression.left_ = std::move(selected.left);
  std::vector<std::shared_ptr<Compression::Layer>> layers;
  for (gating::SelectedLayer& found : selected.layers) {
    const auto layer = std::make_shared<Compression::Layer>();
    layer->weights = {found.weight, found.bias, static_cast<std::int64_t>(found.parts.size())};
    layer->stream = options.stream;
    for (const gating::SelectedLayer::Part& part : found.parts) {
      layer->parts.push_back({part.name, {}, {}});
      if (!part.is_selected) continue;
      GateOptions own = options.gate;
      own.seed = derive_seed(seed, {"gate", std::string_view(part.module)});
      if (!part.projection.empty())
        own.seed = derive_seed(*own.seed, {std::string_view(part.projection)});
      layer->parts.back().plan = new_gate_plan(own, gating::kCompress);
      layer->parts.back().stats = new_gate_stats();
      compression.gates_.add(part.name, layer->parts.back().plan, layer->parts.back().stats);
    }
    layers.push_back(layer);
  }
  gating::check_targets(options.group, compression.gates_.names());

  // A gradient of the weight without one of the output is that of a plain backward pass.
  const auto has_warned = std::make_shared<std::atomic<bool>>(false);
  for (const auto& layer : layers)
    layer->hook = layer->weights.weight.register_hook(
        [weak = std::weak_ptr(layer), has_warned](const at::Tensor&) {
          const auto layer = weak.lock();
          if (layer == nullptr || layer->has_passed.exchange(false) || has_warned->exchange(true))
            return;
          const auto part = std::ranges::find_if(layer->parts, &Compression::Layer::Part::has_gate);
          TORCH_WARN("[compress] a gradient of the weight of ", part->name,
                     " came without its gate: call compression.backward(loss) instead of "
                     "loss.backward(), or compression.place_gates(loss) before it. Also other code "
                     "that uses the weight has no gate");
        });
  gating::GatedWeights& gated = gating::gated_weights();
  const std::lock_guard lock(gated.mutex);
  for (const auto& layer : layers)
    gated.weights.insert(layer->weights.weight.unsafeGetTensorImpl());
  compression.layers_ = std::move(layers);
  return compression;
}

}  // namespace slimgrad
