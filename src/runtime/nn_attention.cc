// nn::MultiheadAttention: torch's attention with its projections as steps of their own, as
// python/slimgrad/nn/projected_attention.py has it.
#include <slimgrad/nn.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <slimgrad/seed.h>

#include "torch/checks.h"
#include "torch/fresh_seed.h"

namespace slimgrad::nn {
namespace {

constexpr const char* kOp = "MultiheadAttention";

enum Projection : std::size_t { kQ, kK, kV, kOut };

// What is added to the scores: numbers.
at::Tensor as_numbers(const at::Tensor& mask, const char* name, at::ScalarType type) {
  if (!mask.defined()) return mask;
  check(mask.scalar_type() == at::kBool || mask.is_floating_point(), kOp,
        std::string(name) + " of type bool or of a floating-point type",
        c10::toString(mask.scalar_type()));
  if (mask.scalar_type() != at::kBool) return mask;
  return at::zeros_like(mask, mask.options().dtype(type))
      .masked_fill_(mask, -std::numeric_limits<double>::infinity());
}

void check_mask(const at::Tensor& mask, const char* name,
                const std::vector<std::vector<std::int64_t>>& shapes) {
  if (!mask.defined()) return;
  std::string expected;
  for (const std::vector<std::int64_t>& shape : shapes) {
    if (mask.sizes() == at::IntArrayRef(shape)) return;
    std::string text;
    for (const std::int64_t length : shape)
      text += (text.empty() ? "" : ", ") + std::to_string(length);
    expected += (expected.empty() ? "(" : " or (") + text + ')';
  }
  throw_invalid(kOp, std::string(name) + " of shape " + expected, mask.sizes());
}

// For one key more, which all may attend to.
at::Tensor with_a_key(const at::Tensor& mask) {
  return mask.defined() ? at::pad(mask, {0, 1}) : mask;
}

// For (batch * heads, length, keys), broadcast.
at::Tensor merged_mask(const at::Tensor& padding, const at::Tensor& attention, std::int64_t batch,
                       std::int64_t heads) {
  const at::Tensor mask =
      attention.defined() && attention.dim() == 2 ? attention.unsqueeze(0) : attention;
  if (!padding.defined()) return mask;
  const at::Tensor padded =
      padding.view({batch, 1, 1, -1}).expand({-1, heads, -1, -1}).reshape({batch * heads, 1, -1});
  return mask.defined() ? mask + padded : padded;
}

// The result as (length, batch * heads, size), and the weights that it was summed with.
std::pair<at::Tensor, at::Tensor> weighted(const at::Tensor& query, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& mask,
                                           double dropout) {
  const at::Tensor q = query * std::sqrt(1.0 / static_cast<double>(query.size(-1)));
  const at::Tensor keys = k.transpose(-2, -1);
  at::Tensor weights =
      at::softmax(mask.defined() ? at::baddbmm(mask, q, keys) : at::bmm(q, keys), -1);
  if (dropout > 0) weights = at::dropout(weights, dropout, true);
  return {at::bmm(weights, v).transpose(0, 1), weights};
}

// The result as (length, batch, heads, size), with strides that may be any.
at::Tensor attended(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor mask,
                    double dropout, bool is_causal, std::int64_t batch) {
  const auto apart = [batch](const at::Tensor& x) { return x.unflatten(0, {batch, -1}); };
  if (mask.defined()) mask = mask.size(0) == 1 ? mask.unsqueeze(0) : apart(mask);
  const auto added = mask.defined() ? std::optional(mask) : std::nullopt;
  return at::scaled_dot_product_attention(apart(q), apart(k), apart(v), added, dropout, is_causal)
      .permute({2, 0, 1, 3});
}

}  // namespace

// ---- state -------------------------------------------------------------------------------------

AttentionStateImpl::AttentionStateImpl(const SparseOptions& options) {
  const std::uint64_t seed = options.gate.seed ? *options.gate.seed : torch_ops::fresh_seed();
  for (std::size_t i = 0; i < projections.size(); ++i) {
    SparseOptions own = options;
    own.gate.seed = derive_seed(seed, {kProjections[i]});
    projections[i] = register_module(kProjections[i], std::make_shared<SparseStateImpl>(own));
  }
}

AttentionStateImpl::AttentionStateImpl(const AttentionStateImpl& other)
    : torch::nn::Module("slimgrad::nn::AttentionState") {
  for (std::size_t i = 0; i < projections.size(); ++i)
    projections[i] = register_module(
        kProjections[i], std::dynamic_pointer_cast<SparseStateImpl>(other.projections[i]->clone()));
  train(other.is_training());
}

std::shared_ptr<torch::nn::Module> AttentionStateImpl::clone(
    const std::optional<at::Device>&) const {
  return std::make_shared<AttentionStateImpl>(*this);
}

MultiheadAttentionImpl::MultiheadAttentionImpl(
    const torch::nn::MultiheadAttentionOptions& attention, const SparseOptions& sparse)
    : torch::nn::MultiheadAttentionImpl(attention) {
  register_module(kStateName, std::make_shared<AttentionStateImpl>(sparse));
}

std::shared_ptr<AttentionStateImpl> MultiheadAttentionImpl::owner() const {
  for (const auto& child : children())
    if (auto state = std::dynamic_pointer_cast<AttentionStateImpl>(child)) return state;
  TORCH_CHECK(false, "[", kOp, "] expected the child ", kStateName, ", got none");
}

SparseLayerState MultiheadAttentionImpl::state(std::size_t projection) const {
  return owner()->projections.at(projection)->tensors;
}

// torch's would make one of its own class.
std::shared_ptr<torch::nn::Module> MultiheadAttentionImpl::clone(
    const std::optional<at::Device>& device) const {
  const torch::NoGradGuard no_gradient;
  const auto copy = std::make_shared<MultiheadAttentionImpl>(*this);
  for (auto& parameter : copy->parameters_) {
    at::Tensor& tensor = parameter.value();
    if (!tensor.defined()) continue;
    const bool has_gradient = tensor.requires_grad();
    tensor = tensor.detach().to(tensor.options().device(device.value_or(tensor.device())),
                                /*non_blocking=*/false, /*copy=*/true);
    tensor.set_requires_grad(has_gradient);
  }
  const auto own = [&](const char* name, at::Tensor& member) {
    if (const at::Tensor* const found = copy->parameters_.find(name)) member = *found;
  };
  own("in_proj_weight", copy->in_proj_weight);
  own("in_proj_bias", copy->in_proj_bias);
  own("bias_k", copy->bias_k);
  own("bias_v", copy->bias_v);
  own("q_proj_weight", copy->q_proj_weight);
  own("k_proj_weight", copy->k_proj_weight);
  own("v_proj_weight", copy->v_proj_weight);
  copy->out_proj = copy->replace_module(
      "out_proj", std::dynamic_pointer_cast<torch::nn::LinearImpl>(out_proj->clone(device)));
  copy->replace_module(kStateName,
                       std::dynamic_pointer_cast<AttentionStateImpl>(owner()->clone(device)));
  return copy;
}

// ---- forward -----------------------------------------------------------------------------------

at::Tensor MultiheadAttentionImpl::project(std::size_t projection, const at::Tensor& x,
                                           const at::Tensor& weight, const at::Tensor& bias) const {
  const SparseStateImpl& own = *owner()->projections[projection];
  return sparse_linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, own.tensors,
                       own.stream);
}

std::tuple<at::Tensor, at::Tensor> MultiheadAttentionImpl::forward(
    const at::Tensor& query_in, const at::Tensor& key_in, const at::Tensor& value_in,
    const at::Tensor& key_padding_mask, bool need_weights, const at::Tensor& attn_mask,
    bool average_attn_weights, bool is_causal) {
  check(!is_causal || attn_mask.defined(), kOp, "attn_mask with is_causal", "none");
  check(query_in.dim() == 2 || query_in.dim() == 3, kOp, "a query of two or three dimensions",
        query_in.dim());
  check(key_in.dim() == query_in.dim() && value_in.dim() == query_in.dim(), kOp,
        "key and value with as many dimensions as the query", key_in.dim(), " and ",
        value_in.dim());
  const bool batched = query_in.dim() == 3;
  const auto in_batch = [batched](const at::Tensor& x) { return batched ? x : x.unsqueeze(1); };
  // One copy of what is one tensor, forward and backward.
  const at::Tensor query = in_batch(query_in).contiguous();
  const at::Tensor key = key_in.is_same(query_in) ? query : in_batch(key_in).contiguous();
  const at::Tensor value = value_in.is_same(key_in) ? key : in_batch(value_in).contiguous();
  const std::int64_t length = query.size(0), batch = query.size(1), heads = options.num_heads();
  const std::int64_t num_keys = key.size(0);
  check(value.size(0) == num_keys && value.size(1) == key.size(1) && key.size(1) == batch, kOp,
        "key and value of one length and a batch of " + std::to_string(batch), key.sizes(), " and ",
        value.sizes());
  at::Tensor padding = as_numbers(key_padding_mask, "key_padding_mask", query.scalar_type());
  at::Tensor attention = as_numbers(attn_mask, "attn_mask", query.scalar_type());
  if (padding.defined() && !batched) padding = padding.unsqueeze(0);
  // With another mask at hand, or weights to return, the hint is of no use.
  const bool by_hint = is_causal && !padding.defined() && !need_weights;
  if (by_hint) attention = at::Tensor();
  check_mask(padding, "key_padding_mask", {{batch, num_keys}});
  check_mask(attention, "attn_mask", {{length, num_keys}, {batch * heads, length, num_keys}});

  const std::vector<at::Tensor> weights_in =
      _qkv_same_embed_dim ? in_proj_weight.chunk(3)
                          : std::vector<at::Tensor>{q_proj_weight, k_proj_weight, v_proj_weight};
  const std::vector<at::Tensor> biases =
      in_proj_bias.defined() ? in_proj_bias.chunk(3) : std::vector<at::Tensor>(3);
  at::Tensor q = project(kQ, query, weights_in[0], biases[0]);
  at::Tensor k = project(kK, key, weights_in[1], biases[1]);
  at::Tensor v = project(kV, value, weights_in[2], biases[2]);
  if (bias_k.defined()) {
    k = at::cat({k, bias_k.repeat({1, batch, 1})});
    v = at::cat({v, bias_v.repeat({1, batch, 1})});
    padding = with_a_key(padding), attention = with_a_key(attention);
  }
  const auto as_heads = [&](const at::Tensor& x) {
    return x.view({x.size(0), batch * heads, head_dim}).transpose(0, 1);
  };
  q = as_heads(q), k = as_heads(k), v = as_heads(v);
  if (options.add_zero_attn()) {
    const auto with_zero = [](const at::Tensor& x) {
      return at::cat({x, at::zeros_like(x.slice(1, 0, 1))}, 1);
    };
    k = with_zero(k), v = with_zero(v);
    padding = with_a_key(padding), attention = with_a_key(attention);
  }
  const at::Tensor mask = merged_mask(padding, attention, batch, heads);
  const double dropout = is_training() ? options.dropout() : 0;
  at::Tensor y, weights;
  if (need_weights) {
    std::tie(y, weights) = weighted(q, k, v, mask, dropout);
    weights = weights.view({batch, heads, length, -1});
    if (average_attn_weights) weights = weights.mean(at::OptionalIntArrayRef(1));
    if (!batched) weights = weights.squeeze(0);
  } else {
    y = attended(q, k, v, mask, dropout, by_hint, batch);
  }
  y = project(kOut, y.reshape({length * batch, options.embed_dim()}), out_proj->weight,
              out_proj->bias)
          .view({length, batch, -1});
  return {batched ? y : y.squeeze(1), weights};
}

}  // namespace slimgrad::nn
