// Does with the tensors of a file what tests/python/test_like_cpp.py does with them, and writes the
// results to another one, for the test to compare to the bit:
//
//   slimgrad-like-python IN.sg OUT.sg
#include <slimgrad/nn.h>
#include <slimgrad/torch.h>

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/init.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

namespace sg = slimgrad;
namespace F = slimgrad::functional;

namespace {

using Call = std::function<at::Tensor(const at::Tensor&)>;

sg::TensorDict results;

void add(const std::string& name, const at::Tensor& tensor) { results.insert(name, tensor); }

void add(const std::string& name, std::vector<double> numbers) {
  add(name, at::tensor(numbers, at::kDouble));
}

void add_text(const std::string& name, const std::string& text) {
  add(name, at::tensor(std::vector<std::int64_t>(text.begin(), text.end()), at::kLong));
}

void add_error(const std::string& name, const std::function<void()>& call) {
  try {
    call();
  } catch (const sg::InvalidArgument& error) {
    add_text("error " + name, error.what());
  }
}

// A result and its gradient, of a loss that weights every output differently.
void add_gradient(const std::string& name, const Call& call, const at::Tensor& x) {
  const at::Tensor input = x.detach().clone().requires_grad_();
  torch::manual_seed(11);
  const at::Tensor y = call(input * 1);  // no leaf, for what works in place
  add(name, y.detach());
  add(name + " gradient", torch::autograd::grad({(y * y).sum()}, {input})[0]);
}

void decisions(const at::Tensor& x) {
  const sg::TensorStats stats = sg::measure(x);
  add("measure", {static_cast<double>(stats.count), static_cast<double>(stats.zeros),
                  static_cast<double>(stats.nonfinite), stats.zero_fraction, stats.log_mean,
                  stats.log_std, stats.max_abs, stats.mean_abs, stats.mean_square});
  const sg::FloatFormat format = sg::best_format(6, stats);
  const double threshold = sg::threshold(stats, 0.8).value;
  add("decisions",
      {threshold, sg::expected_sparsity(stats, threshold), sg::expected_cosine(stats, threshold),
       static_cast<double>(format.exponent_bits()), static_cast<double>(format.mantissa_bits()),
       sg::gradient_scale(stats, format), sg::relative_error(format, 2.5),
       static_cast<double>(sg::best_format(8, 2.5, 4.5).exponent_bits()),
       sg::expected_error(stats,
                          {format, 0.5, sg::Rounding::kStochastic, sg::Underflow::kStochastic})});
  const sg::TensorStats lognormal = sg::lognormal_stats(-3, 2, 0.1);
  const auto add_allocation = [](const char* name, const std::vector<sg::TensorStats>& layers) {
    std::vector<double> sparsities;
    for (const sg::LayerAllocation& layer : sg::allocate(layers, 0.7))
      sparsities.push_back(layer.sparsity);
    add(name, sparsities);
  };
  add_allocation("allocate", {stats, sg::measure(x * x)});
  add_allocation("allocate lognormal", {stats, lognormal});
  for (const sg::Family family : sg::kAllFamilies) {
    const sg::Distribution law = sg::fit(x, family);
    std::vector<double> numbers = law.params();
    numbers.insert(numbers.end(), {sg::ks(law, x), sg::wasserstein(law, x)});
    add("fit " + std::string(sg::family_name(family)), numbers);
    add("cdf " + std::string(sg::family_name(family)), sg::cdf(law, x.abs()));
  }
  const auto add_table = [](const std::string& name, const sg::StepTable& table) {
    std::vector<double> numbers = table.borders;
    numbers.insert(numbers.end(), table.levels.begin(), table.levels.end());
    numbers.insert(numbers.end(), {table.error, table.even ? 1.0 : 0.0});
    add(name, numbers);
  };
  add_table("steps", sg::steps("gelu"));
  add_table("steps normal", sg::steps("sigmoid", 2, -5, 5, sg::StepWeight::kNormal));
  add_table("steps function",
            sg::steps([](const at::Tensor& y) { return y * y.sigmoid(); }, 2, -4, 4));
}

void applied(const std::string& name, const at::Tensor& x) {
  const sg::FloatFormat format(4, 1);
  const auto stochastic = sg::Rounding::kStochastic;
  const auto underflow = sg::Underflow::kStochastic;
  add(name + " quantize", sg::quantize(x, format, 0.25));
  add(name + " quantize stochastic", sg::quantize(x, format, 0.25, stochastic, underflow, 7));
  add(name + " prune", sg::prune(x, 1.5, 9));
  add(name + " prune_quantize", sg::prune_quantize(x, 1.5, format, 0.25, stochastic, underflow, 3));
  add(name + " pack", sg::pack(x, format, 0.25, stochastic, underflow, 7).data);
  add(name + " unpack", sg::pack(x, format, 0.25).unpack(at::kFloat));
  torch::manual_seed(5);  // seeds of torch's generator, in this order
  add(name + " drawn quantize", sg::quantize(x, format, 0.25, stochastic));
  add(name + " not drawn", sg::quantize(x, format, 0.25));
  add(name + " drawn prune", sg::prune(x, 1.5));
  add(name + " drawn prune_quantize", sg::prune_quantize(x, 1.5, format, 0.25));
  add(name + " drawn pack", sg::pack(x, format, 0.25, sg::Rounding::kNearest, underflow).data);
  add(name + " drawn encode",
      sg::encode(x, {.kind = sg::PayloadKind::kUniform, .rounding = stochastic}));
  add(name + " encode", sg::encode(x));
  add(name + " encode uniform", sg::encode(x, {.kind = sg::PayloadKind::kUniform,
                                               .coder = sg::EntropyCoder::kHuffman,
                                               .bits = 4,
                                               .model = sg::TableModel::kGennorm,
                                               .rounding = stochastic,
                                               .seed = 3}));
  add(name + " encode float",
      sg::encode(x,
                 {.kind = sg::PayloadKind::kFloat, .format = sg::FloatFormat(3, 2), .scale = 0.5}));
  add(name + " encode pruned",
      sg::encode(sg::prune(x, 1.5, 9), {.kind = sg::PayloadKind::kPruned}));
}

void functions(const at::Tensor& x) {
  const auto few = sg::FewbitOptions().bits(2);
  const auto wide = sg::FewbitOptions().bits(4).low(-6).high(5).weight(sg::StepWeight::kUniform);
  const auto exact = sg::FewbitOptions().exact(true);
  const at::Tensor slopes = at::tensor({0.1, 0.2, 0.3, 0.4}, at::kFloat);
  const sg::StepTable table = sg::steps("silu", 2);
  const std::map<std::string, Call> calls = {
      {"relu", [](const at::Tensor& y) { return F::relu(y); }},
      {"relu inplace", [](const at::Tensor& y) { return F::relu(y, true); }},
      {"leaky_relu", [](const at::Tensor& y) { return F::leaky_relu(y); }},
      {"rrelu", [](const at::Tensor& y) { return F::rrelu(y); }},
      {"rrelu training", [](const at::Tensor& y) { return F::rrelu(y, 0.1, 0.3, true); }},
      {"threshold", [](const at::Tensor& y) { return F::threshold(y, 0.5, 0.1); }},
      {"relu6", [](const at::Tensor& y) { return F::relu6(y); }},
      {"hardtanh", [](const at::Tensor& y) { return F::hardtanh(y, -0.5, 2); }},
      {"hardsigmoid", [](const at::Tensor& y) { return F::hardsigmoid(y); }},
      {"hardshrink", [](const at::Tensor& y) { return F::hardshrink(y); }},
      {"softshrink", [](const at::Tensor& y) { return F::softshrink(y, 0.3); }},
      {"gelu", [](const at::Tensor& y) { return F::gelu(y); }},
      {"gelu tanh", [=](const at::Tensor& y) { return F::gelu(y, "tanh", few); }},
      {"gelu exact", [=](const at::Tensor& y) { return F::gelu(y, "none", exact); }},
      {"quick_gelu", [=](const at::Tensor& y) { return F::quick_gelu(y, wide); }},
      {"silu", [](const at::Tensor& y) { return F::silu(y, true); }},
      {"silu exact", [=](const at::Tensor& y) { return F::silu(y, false, exact); }},
      {"mish", [](const at::Tensor& y) { return F::mish(y); }},
      {"hardswish", [](const at::Tensor& y) { return F::hardswish(y); }},
      {"sigmoid", [=](const at::Tensor& y) { return F::sigmoid(y, wide); }},
      {"logsigmoid", [](const at::Tensor& y) { return F::logsigmoid(y); }},
      {"tanh", [](const at::Tensor& y) { return F::tanh(y); }},
      {"tanhshrink", [](const at::Tensor& y) { return F::tanhshrink(y); }},
      {"softsign", [](const at::Tensor& y) { return F::softsign(y); }},
      {"softplus", [](const at::Tensor& y) { return F::softplus(y, 2); }},
      {"elu", [](const at::Tensor& y) { return F::elu(y, 0.5); }},
      {"celu", [](const at::Tensor& y) { return F::celu(y, 0.5, true); }},
      {"selu", [](const at::Tensor& y) { return F::selu(y); }},
      {"stepwise",
       [=](const at::Tensor& y) {
         return F::stepwise(
             y, [](const at::Tensor& z) { return z * z.sigmoid(); }, table);
       }},
      {"prelu", [=](const at::Tensor& y) { return F::prelu(y, slopes); }},
      {"dropout", [](const at::Tensor& y) { return F::dropout(y, 0.3); }},
      {"max_pool2d", [](const at::Tensor& y) { return F::max_pool2d(y, 2); }},
      {"max_pool2d overlapping",
       [](const at::Tensor& y) {
         return F::max_pool2d(y, {3, 2}, {2, 1}, {1, 0}, 1, true);
       }},
      {"nn.Dropout", [](const at::Tensor& y) { return sg::nn::Dropout(0.4)->forward(y); }},
      {"nn.MaxPool2d",
       [](const at::Tensor& y) {
         return sg::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2))->forward(y);
       }},
      {"nn.Stepwise",
       [=](const at::Tensor& y) {
         return sg::nn::Stepwise([](const at::Tensor& z) { return z * z.sigmoid(); }, table)
             ->forward(y);
       }},
  };
  for (const auto& [name, call] : calls) add_gradient("functional " + name, call, x);
}

sg::nn::SparseOptions sparse_options(bool has_seed) {
  sg::nn::SparseOptions options;
  options.weight_sparsity = 0.9;
  options.input_sparsity = 0.5;
  options.always = true;
  options.stream = 2;
  if (has_seed) options.gate.seed = 3;
  return options;
}

// The parameters are those of the file, by name; `name` with its gradients is added.
template <typename Module>
void add_layer(const std::string& name, Module& layer, const sg::TensorDict& given,
               const std::function<at::Tensor()>& forward) {
  {
    const torch::NoGradGuard no_gradient;
    for (auto& item : layer->named_parameters()) item.value().copy_(given[name + "." + item.key()]);
  }
  const at::Tensor y = forward();
  add(name, y.detach());
  (y * y).sum().backward();
  for (const auto& item : layer->named_parameters())
    add(name + "." + item.key() + " gradient", item.value().grad());
}

void layers(const sg::TensorDict& given) {
  for (const bool has_seed : {true, false}) {
    const std::string linear_name = has_seed ? "linear" : "linear drawn";
    torch::manual_seed(13);
    sg::nn::SparseOptions sparse = sparse_options(has_seed);
    sg::nn::Linear linear(torch::nn::LinearOptions(48, 64), sparse);
    add_layer(linear_name, linear, given, [&] { return linear(given["rows"]); });
  }
  sg::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 16, 3).padding(1), sparse_options(true));
  add_layer("conv", conv, given, [&] { return conv(given["images"]); });

  const at::Tensor words = given["words"], keys = given["keys"];
  const at::Tensor padding = given["padding"].to(at::kBool), causal = given["causal"].to(at::kBool);
  sg::nn::MultiheadAttention own(torch::nn::MultiheadAttentionOptions(32, 4), sparse_options(true));
  add_layer("attention", own, given, [&] {
    auto [y, weights] = own(words, words, words, padding, true, causal);
    add("attention weights", weights.detach());
    return y;
  });
  sg::nn::MultiheadAttention other(
      torch::nn::MultiheadAttentionOptions(32, 4).kdim(24).vdim(24).add_bias_kv(true).add_zero_attn(
          true),
      sparse_options(true));
  add_layer("attention apart", other, given,
            [&] { return std::get<0>(other(words, keys, keys, at::Tensor(), false)); });
  sg::nn::MultiheadAttention hinted(torch::nn::MultiheadAttentionOptions(32, 4).dropout(0.2),
                                    sparse_options(true));
  torch::manual_seed(17);
  add_layer("attention causal", hinted, given, [&] {
    return std::get<0>(hinted(words, words, words, at::Tensor(), false, causal, true, true));
  });
  const auto state = sg::nn::state_dict(*own);
  std::string names;
  for (const std::string& key : state.keys()) names += key + "\n";
  add_text("attention state", names);
}

void errors(const at::Tensor& x) {
  const sg::FloatFormat format(4, 1);
  add_error("quantize type", [&] { sg::quantize(x.to(at::kDouble), format, 1); });
  add_error("quantize scale", [&] { sg::quantize(x, format, -1); });
  add_error("prune threshold", [&] { sg::prune(x, -1); });
  add_error("prune gradient", [&] { sg::prune(x.detach().requires_grad_(), 1); });
  add_error("pack nan", [&] { sg::pack(x / 0, format, 1); });
  add_error("encode nan", [&] { sg::encode(x / 0, {.kind = sg::PayloadKind::kUniform}); });
  add_error("encode type", [&] { sg::encode(x.to(at::kLong)); });
  add_error("encode bits", [&] { sg::encode(x, {.kind = sg::PayloadKind::kUniform, .bits = 1}); });
  add_error("measure type", [&] { sg::measure(x.to(at::kLong)); });
  add_error("fit zeros", [&] { sg::fit(x * 0, sg::Family::kNormal); });
  add_error("threshold", [&] { sg::threshold(sg::measure(x), 1.5); });
  add_error("steps bits", [&] { sg::steps("gelu", 9); });
  add_error("steps name", [&] { sg::steps("sine"); });
  add_error("dropout", [&] { F::dropout(x, 1.5); });
  add_error("hardtanh", [&] { F::hardtanh(x, 1, -1); });
  add_error("gelu type", [&] { F::gelu(x.to(at::kLong)); });
  add_error("meta", [&] { sg::encode(x.to(at::kMeta)); });
}

}  // namespace

int main(int, char** argv) {
  const auto given = std::get<sg::TensorDict>(sg::load(argv[1]));
  const at::Tensor x = given["x"];
  decisions(x);
  applied("float32", x);
  applied("bfloat16", x.to(at::kBFloat16));
  applied("transposed", x.transpose(0, 3));
  functions(x);
  layers(given);
  errors(x);
  sg::save(results, argv[2]);
}
