#include "runtime/compress/selection.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <slimgrad/nn.h>

#include "base/check.h"

namespace slimgrad::gating {
namespace {

using torch::nn::Module;
using torch::nn::MultiheadAttentionImpl;
using Names = std::vector<std::string>;
using Reason = std::optional<std::string>;

template <typename... Classes>
bool is_any_of(const Module& module) {
  return ((dynamic_cast<const Classes*>(&module) != nullptr) || ...);
}

struct NamedModule {
  std::string name;
  const Module* module;
};

// In the order of named_modules(), with the module itself first; it need not be held by a pointer.
std::vector<NamedModule> modules_in(const Module& module) {
  std::vector<NamedModule> modules{{"", &module}};
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    modules.push_back({item.key(), item.value().get()});
  return modules;
}

std::string join(const std::string& name, const std::string& last) {
  return name.empty() ? last : name + "." + last;
}

bool is_named(const Names& names, const std::string& module) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    return name == module || module.starts_with(name + ".");
  });
}

struct Weights {
  at::Tensor weight, bias;
};

template <typename Layer>
bool take_weights(const Module& module, Weights& weights) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  if (layer != nullptr) weights = {layer->weight, layer->bias};
  return layer != nullptr;
}

// Those of a layer that compress() knows.
std::optional<Weights> weights_of(const Module& module) {
  using namespace torch::nn;
  Weights weights;
  const bool is_layer =
      take_weights<LinearImpl>(module, weights) || take_weights<Conv1dImpl>(module, weights) ||
      take_weights<Conv2dImpl>(module, weights) || take_weights<Conv3dImpl>(module, weights) ||
      take_weights<ConvTranspose1dImpl>(module, weights) ||
      take_weights<ConvTranspose2dImpl>(module, weights) ||
      take_weights<ConvTranspose3dImpl>(module, weights);
  return is_layer ? std::optional(weights) : std::nullopt;
}

bool has_own_state(const Module& module) {
  return std::ranges::any_of(module.children(), [](const std::shared_ptr<Module>& child) {
    return is_any_of<nn::StateOwner>(*child);
  });
}

// A parameter of the module itself that is more than a row of numbers: a class token of shape
// (1, 1, n) is such a row.
bool has_weight(const Module& module) {
  return std::ranges::any_of(module.named_parameters(/*recurse=*/false), [](const auto& item) {
    return std::ranges::count_if(item.value().sizes(), [](std::int64_t n) { return n > 1; }) >= 2;
  });
}

std::string class_of(const Module& module) {
  const std::string& name = module.name();
  constexpr std::string_view kEnding = "Impl";
  return name.ends_with(kEnding) ? name.substr(0, name.size() - kEnding.size()) : name;
}

// Why a module with weights that is no layer is left; none if it has no weights.
Reason reason_of_other(const Module& module) {
  using namespace torch::nn;
  if (is_any_of<LayerNormImpl>(module) || !has_weight(module)) return std::nullopt;
  std::string why =
      "not a class that compress() knows; torch::nn::Linear, a convolution or a subclass of them "
      "in its place is compressed";
  if (is_any_of<RNNImpl, LSTMImpl, GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl>(module))
    why = "its products are inside one call of torch, where no gradient can be reached";
  else if (is_any_of<BilinearImpl>(module))
    why = "a product of two inputs with a weight, which has no compressed form";
  else if (is_any_of<EmbeddingImpl, EmbeddingBagImpl>(module))
    why = "no product: its gradient is added to rows of the table";
  return class_of(module) + ": " + why;
}

class Selector {
 public:
  Selector(const Names& include, const Names& exclude) : include_(include), exclude_(exclude) {}

  void check_names(const std::vector<NamedModule>& modules) const {
    std::set<std::string> known;
    for (const auto& [name, module] : modules) {
      known.insert(name);
      if (is_any_of<MultiheadAttentionImpl>(*module))
        for (const char* part : {"q", "k", "v"}) known.insert(join(name, part));
    }
    for (const auto& [what, names] : {std::pair{"include", &include_}, {"exclude", &exclude_}})
      for (const std::string& name : *names)
        check(known.contains(name), "compress", std::string("names of modules in ") + what, name);
  }

  void add(const std::string& name, const Weights& weights, bool is_compressed = false) {
    add_parts({weights.weight, weights.bias, {{name, name, "", true}}}, is_compressed);
  }

  void add_attention(const std::string& name, const MultiheadAttentionImpl& attention) {
    const auto part = [&](const char* which) {
      return SelectedLayer::Part{join(name, which), name, which, true};
    };
    const at::Tensor& bias = attention.in_proj_bias;
    if (attention._qkv_same_embed_dim) {
      add_parts({attention.in_proj_weight, bias, {part("q"), part("k"), part("v")}});
    } else {
      add_parts({attention.q_proj_weight, bias, {part("q")}});
      add_parts({attention.k_proj_weight, bias, {part("k")}});
      add_parts({attention.v_proj_weight, bias, {part("v")}});
    }
    add_parts({attention.out_proj->weight, attention.out_proj->bias, {part("out_proj")}});
  }

  void leave(const std::string& name, std::string why) { found_.left[name] = std::move(why); }

  SelectedLayers take() { return std::move(found_); }

 private:
  void add_parts(SelectedLayer layer, bool is_compressed = false) {
    bool is_wanted = false;
    for (SelectedLayer::Part& part : layer.parts) {
      const Reason why = refusal(part.name, layer.weight, is_compressed);
      is_wanted |= !why;
      if (!why) continue;
      leave(part.name, *why);
      part.is_selected = false;
    }
    if (!is_wanted) return;
    for (const SelectedLayer::Part& part : layer.parts)
      owners_.try_emplace(layer.weight.unsafeGetTensorImpl(), part.name);
    found_.layers.push_back(std::move(layer));
  }

  Reason refusal(const std::string& name, const at::Tensor& weight, bool is_compressed) const {
    if (!include_.empty() && !is_named(include_, name)) return "not included";
    if (is_named(exclude_, name)) return "excluded";
    if (is_compressed) return "compressed already, by a module whose state is in nn::state_dict()";
    if (has_gates(weight)) return "compressed already";
    if (!weight.requires_grad())
      return "its weight is frozen, and autograd's graph shows a layer by its weight";
    const auto owner = owners_.find(weight.unsafeGetTensorImpl());
    if (owner == owners_.end()) return std::nullopt;
    return "has the weight of " + owner->second + ", whose gate is behind both";
  }

  const Names &include_, &exclude_;
  std::map<const c10::TensorImpl*, std::string> owners_;  // of weights
  SelectedLayers found_;
};

}  // namespace

SelectedLayers select_layers(const Module& module, const Names& include, const Names& exclude) {
  const std::vector<NamedModule> modules = modules_in(module);
  Selector selector(include, exclude);
  selector.check_names(modules);
  std::set<const Module*> seen;  // what is registered twice has its first name
  for (const auto& [name, one] : modules) {
    if (!seen.insert(one).second) continue;
    const auto weights = weights_of(*one);
    if (const auto* attention = dynamic_cast<const MultiheadAttentionImpl*>(one)) {
      seen.insert(attention->out_proj.get());
      selector.add_attention(name, *attention);
    } else if (weights) {
      selector.add(name, *weights, has_own_state(*one));
    } else if (const Reason why = reason_of_other(*one)) {
      selector.leave(name, *why);
    }
  }
  return selector.take();
}

}  // namespace slimgrad::gating
