// slimgrad's modules for libtorch programs: GradientGate; torch::nn's Linear, Conv2d and
// MultiheadAttention with a sparse backward pass (sparse_layers.h); torch::nn's activations,
// dropout and max pooling with a few bits saved for backward (functional.h); and the state of all
// of them.
//
// **State** is settings, counters, seeds and the plans in force. It is no part of a module's
// parameters and buffers, so torch::save writes the archive that the same network without slimgrad
// writes, and each reads the other's; .to() neither moves nor rounds it. A run that is to continue
// bit for bit saves it beside the archive:
//
//   const std::vector<char> bytes =
//       torch::pickle_save(slimgrad::nn::to_dict(slimgrad::nn::state_dict(*network)));
//   ...
//   const auto state = slimgrad::nn::to_state(torch::pickle_load(bytes));
//   for (const std::string& difference : slimgrad::nn::load_state_dict(*network, state))
//     std::cerr << "slimgrad: " << difference << '\n';
//
// **Activations** take torch's options; those whose table is an approximation take FewbitOptions in
// front:
//
//   slimgrad::nn::GELU()                                        3 bits
//   slimgrad::nn::GELU(slimgrad::FewbitOptions().bits(2))
//   slimgrad::nn::GELU(slimgrad::FewbitOptions().exact(true))
//   slimgrad::nn::ELU(slimgrad::FewbitOptions(), torch::nn::ELUOptions().alpha(0.5))
//   slimgrad::nn::ReLU(torch::nn::ReLUOptions().inplace(true))  exact, 1 bit
//
// Threads: gradient_gate.h, sparse_layers.h and activations.h say what holds for forward and
// backward. state_dict() and load_state_dict() are not for two threads at once, nor while a
// backward pass runs.
#ifndef SLIMGRAD_NN_H_
#define SLIMGRAD_NN_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/prelu.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/options/activation.h>
#include <torch/nn/options/dropout.h>
#include <torch/nn/options/pooling.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <slimgrad/activations.h>
#include <slimgrad/error.h>
#include <slimgrad/functional.h>
#include <slimgrad/gate_group.h>
#include <slimgrad/gradient_gate.h>
#include <slimgrad/sparse_layers.h>

namespace slimgrad::nn {

// The base of modules that hold state; one that belongs to a layer is registered as its child
// kStateName. Like all of torch's modules they are copied as handles: reset() gives a copy its own
// tensors.
class StateOwner {
 public:
  virtual ~StateOwner() = default;
  virtual void add_to(GateGroup& group, const std::string& layer) const = 0;
};
inline constexpr const char* kStateName = "slimgrad_state";

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// Copies of all state in `module` and below, by the names of its layers: "fc1.plan" and "fc1.stats"
// of a gate; "fc1.weight.plan", "fc1.weight.stats", the same for "input", and "fc1.choice" of a
// sparse layer; and "version".
StateDict state_dict(const torch::nn::Module& module);

// Continues where a saved network was; load_gate() and load_sparse_choice() say what is taken over.
// Settings stay those of `module`. Returns in words which ones differ, and which layers the state
// or the module does not have. Throws InvalidArgument for a damaged state, and then nothing has
// changed.
std::vector<std::string> load_state_dict(torch::nn::Module& module, const StateDict& state);

// For archives: a dictionary of names and tensors, and back. to_state() throws InvalidArgument for
// anything else.
c10::IValue to_dict(const StateDict& state);
StateDict to_state(const c10::IValue& dict);

// gradient_gate() with its state, which state_dict() copies; torch::save leaves it out. Without a
// seed in its options a gate takes one from torch's generator. In a distributed job `stream` is the
// rank.
class GradientGateImpl : public torch::nn::Cloneable<GradientGateImpl>, public StateOwner {
 public:
  explicit GradientGateImpl(const GateOptions& options, std::int64_t stream = 0)
      : plan(new_gate_plan(options, "GradientGate")), stats(new_gate_stats()), stream(stream) {}

  void reset() override { plan = plan.clone(), stats = stats.clone(); }
  bool is_serializable() const override { return false; }
  void add_to(GateGroup& group, const std::string& layer) const override {
    group.add(layer, plan, stats);
  }

  at::Tensor forward(const at::Tensor& x) {
    const bool has_gradient = at::GradMode::is_enabled() && x.requires_grad();
    return has_gradient ? gradient_gate(x, plan, stats, stream) : x;
  }
  GateReport report() const { return gate_report(plan, stats); }

  at::Tensor plan, stats;
  std::int64_t stream;
};
TORCH_MODULE(GradientGate);

// Sparsities of the two products; 0 leaves one dense and exact. `gate` has the other options of a
// gate: method, sample, warm-up, seed; no sparsity, no bits, and no pruning but the stochastic one.
struct SparseOptions {
  double weight_sparsity = 0.9;
  double input_sparsity = 0;
  GateOptions gate;
  bool always = false;  // sparse even where dense is faster
  // Which of the seed's random numbers are drawn: the rank, in a distributed job.
  std::int64_t stream = 0;
};

// The two plans; without a seed in options.gate both are derived from one of torch's generator.
struct ProductPlans {
  at::Tensor weight, input;
};
ProductPlans new_product_plans(const SparseOptions& options);

// A layer's state, as a child of it that torch::save leaves out. It is a child because cloning a
// network copies to its layers only what torch::nn::LinearImpl has, and children.
class SparseStateImpl : public torch::nn::Cloneable<SparseStateImpl>, public StateOwner {
 public:
  explicit SparseStateImpl(const SparseOptions& options)
      : SparseStateImpl(options, new_product_plans(options)) {}

  void reset() override {
    for (at::Tensor* tensor : {&tensors.weight_plan, &tensors.weight_stats, &tensors.input_plan,
                               &tensors.input_stats, &tensors.choice})
      *tensor = tensor->clone();
  }
  bool is_serializable() const override { return false; }
  void add_to(GateGroup& group, const std::string& layer) const override {
    group.add(layer, tensors);
  }

  SparseLayerState tensors;
  std::int64_t stream;

 private:
  SparseStateImpl(const SparseOptions& options, const ProductPlans& plans)
      : tensors{.weight_plan = plans.weight,
                .weight_stats = new_gate_stats(),
                .input_plan = plans.input,
                .input_stats = new_gate_stats(),
                .choice = new_sparse_choice(options.always)},
        stream(options.stream) {}
};

// The base of Linear and Conv2d: the state, and a clone() that copies it with the parameters, which
// that of `Base` would not.
template <typename Derived, typename Base>
class SparseLayer : public Base {
 public:
  template <typename Options>
  SparseLayer(const Options& options, const SparseOptions& sparse) : Base(options) {
    this->register_module(kStateName, std::make_shared<SparseStateImpl>(sparse));
  }

  // Handles to the tensors that backward writes.
  SparseLayerState state() const { return owner()->tensors; }
  std::int64_t stream() const { return owner()->stream; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    const torch::NoGradGuard no_gradient;
    const auto copy = std::make_shared<Derived>(static_cast<const Derived&>(*this));
    SparseLayer& layer = *copy;
    for (auto& parameter : layer.parameters_) {
      at::Tensor& tensor = parameter.value();
      if (!tensor.defined()) continue;  // no bias
      const auto options = tensor.options().device(device.value_or(tensor.device()));
      const bool has_gradient = tensor.requires_grad();
      tensor = tensor.detach().to(options, /*non_blocking=*/false, /*copy=*/true);
      tensor.set_requires_grad(has_gradient);
    }
    layer.weight = layer.parameters_["weight"];
    layer.bias = layer.parameters_["bias"];
    layer.replace_module(kStateName, std::dynamic_pointer_cast<SparseStateImpl>(owner()->clone()));
    return copy;
  }

 protected:
  std::optional<at::Tensor> bias_if_any() const {
    return this->bias.defined() ? std::optional<at::Tensor>(this->bias) : std::nullopt;
  }

 private:
  std::shared_ptr<SparseStateImpl> owner() const {
    for (const auto& child : this->children())
      if (auto state = std::dynamic_pointer_cast<SparseStateImpl>(child)) return state;
    TORCH_CHECK(false, "[", this->name(), "] expected the child ", kStateName, ", got none");
  }
};

// Both layers have the parameters of torch's and no buffers: archives of either load into the
// other.
class LinearImpl : public SparseLayer<LinearImpl, torch::nn::LinearImpl> {
 public:
  LinearImpl(const torch::nn::LinearOptions& linear, const SparseOptions& sparse)
      : SparseLayer(linear, sparse) {}

  at::Tensor forward(const at::Tensor& x) {
    return sparse_linear(x, weight, bias_if_any(), state(), stream());
  }
};
TORCH_MODULE(Linear);

// Zero padding only: throws InvalidArgument for other modes and for padding by name.
class Conv2dImpl : public SparseLayer<Conv2dImpl, torch::nn::Conv2dImpl> {
 public:
  Conv2dImpl(const torch::nn::Conv2dOptions& conv, const SparseOptions& sparse)
      : SparseLayer(conv, sparse) {
    if (!std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()))
      throw InvalidArgument("[Conv2d] expected padding_mode torch::kZeros, got another mode");
    if (!std::holds_alternative<torch::ExpandingArray<2>>(options.padding()))
      throw InvalidArgument("[Conv2d] expected padding as numbers, got kSame or kValid");
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto padding = std::get<torch::ExpandingArray<2>>(options.padding());
    return sparse_conv2d(x, weight, bias_if_any(), options.stride(), padding, options.dilation(),
                         options.groups(), state(), stream());
  }
};
TORCH_MODULE(Conv2d);

// The states of an attention's projections, in the order of kProjections.
inline constexpr std::array kProjections = {"q", "k", "v", "out_proj"};
class AttentionStateImpl : public torch::nn::Module {
 public:
  explicit AttentionStateImpl(const SparseOptions& options);
  AttentionStateImpl(const AttentionStateImpl& other);

  bool is_serializable() const override { return false; }
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  std::array<std::shared_ptr<SparseStateImpl>, kProjections.size()> projections;
};

// torch's attention whose projections have a sparse backward pass, each with a state of its own:
// "attention.q.weight.plan" and so on in state_dict(). q, k and v are three products even of one
// input. The two products inside the attention are dense and exact.
//
// Inputs are (length, batch, embedding), or (length, embedding). Masks are those of Python's: bool,
// true where nothing may be attended to, or numbers that are added to the scores. Without
// `need_weights` it is torch's scaled_dot_product_attention, and the weights are undefined.
class MultiheadAttentionImpl : public torch::nn::MultiheadAttentionImpl {
 public:
  MultiheadAttentionImpl(const torch::nn::MultiheadAttentionOptions& attention,
                         const SparseOptions& sparse);

  std::tuple<at::Tensor, at::Tensor> forward(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const at::Tensor& key_padding_mask = {}, bool need_weights = true,
      const at::Tensor& attn_mask = {}, bool average_attn_weights = true, bool is_causal = false);

  // Handles to the tensors that backward writes, of a projection by its place in kProjections.
  SparseLayerState state(std::size_t projection) const;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({3, torch::nn::AnyValue(at::Tensor())}, {4, torch::nn::AnyValue(true)},
                           {5, torch::nn::AnyValue(at::Tensor())}, {6, torch::nn::AnyValue(true)},
                           {7, torch::nn::AnyValue(false)})

 private:
  std::shared_ptr<AttentionStateImpl> owner() const;
  at::Tensor project(std::size_t projection, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias) const;
};
TORCH_MODULE(MultiheadAttention);

// For activations without options in torch.
struct NoOptions {};

// A call with what torch's options hold: they have the names of the parameters, but for `lambd`.
template <typename Options>
ActivationCall activation_call(std::string name, const Options& options) {
  ActivationCall call = {std::move(name)};
  const auto add = [&call](const char* parameter, double value) {
    call.shape[parameter] = value;
    call.arguments.push_back(value);
  };
  if constexpr (requires { options.approximate(); }) call.name = gelu_name(options.approximate());
  if constexpr (requires { options.alpha(); }) add("alpha", options.alpha());
  if constexpr (requires { options.beta(); }) add("beta", options.beta());
  if constexpr (requires { options.lambda(); }) add("lambd", options.lambda());
  if constexpr (requires { options.min_val(); }) add("min_val", options.min_val());
  if constexpr (requires { options.max_val(); }) add("max_val", options.max_val());
  if constexpr (requires { options.negative_slope(); })
    add("negative_slope", options.negative_slope());
  if constexpr (requires { options.threshold(); }) add("threshold", options.threshold());
  // Below the threshold, where the derivative is 0 whatever the value.
  if constexpr (requires { options.value(); }) call.arguments.push_back(options.value());
  if constexpr (requires { options.inplace(); }) call.inplace = options.inplace();
  return call;
}

// What the modules share. They have no parameters, and a clone is a copy.
template <typename Derived>
class FewbitModule : public torch::nn::Cloneable<Derived> {
 public:
  // `from_output`: without a table, for those that invertible_activation() knows.
  FewbitModule(ActivationCall call, const FewbitOptions& fewbit, bool from_output = false)
      : torch::nn::Cloneable<Derived>("slimgrad::nn::" + call.name),
        activation_(std::move(call), fewbit.bits(), fewbit.low(), fewbit.high(), fewbit.weight()),
        from_output_(from_output) {}

  void reset() override {}
  void pretty_print(std::ostream& stream) const override {
    stream << this->name();
    if (from_output_)
      stream << "(exact)";
    else
      stream << '(' << activation_.table().levels.size() << " levels)";
  }

  at::Tensor forward(const at::Tensor& x) {
    return from_output_ ? invertible_activation(x, activation_.name()) : activation_(x);
  }

  const FewbitActivation& activation() const { return activation_; }

 private:
  FewbitActivation activation_;
  bool from_output_;
};

// A module's activation as a template argument.
template <std::size_t size>
struct ActivationName {
  char text[size];
  consteval ActivationName(const char (&name)[size]) { std::copy_n(name, size, text); }
};

// The three shapes of a module. With a table that approximates:
template <ActivationName name, typename Options = NoOptions>
class Approximating : public FewbitModule<Approximating<name, Options>> {
 public:
  explicit Approximating(const FewbitOptions& fewbit = {}, const Options& options = {})
      : FewbitModule<Approximating>(activation_call(name.text, options), fewbit) {
    check_fewbit_options(fewbit, name.text, false);
  }
};

// The same, but it can also be inverted:
template <ActivationName name, typename Options = NoOptions>
class Invertible : public FewbitModule<Invertible<name, Options>> {
 public:
  explicit Invertible(const FewbitOptions& fewbit = {}, const Options& options = {})
      : FewbitModule<Invertible>(activation_call(name.text, options), fewbit, fewbit.exact()) {
    check_fewbit_options(fewbit, name.text, true);
  }
};

// Exact, because the derivative is piecewise constant:
template <ActivationName name, typename Options = NoOptions>
class Exact : public FewbitModule<Exact<name, Options>> {
 public:
  explicit Exact(const Options& options = {})
      : FewbitModule<Exact>(activation_call(name.text, options), FewbitOptions()) {}
};

using GELUImpl = Invertible<"gelu", torch::nn::GELUOptions>;
TORCH_MODULE(GELU);
using SiLUImpl = Invertible<"silu">;
TORCH_MODULE(SiLU);
using MishImpl = Invertible<"mish">;
TORCH_MODULE(Mish);

using HardswishImpl = Approximating<"hardswish">;
TORCH_MODULE(Hardswish);
using SigmoidImpl = Approximating<"sigmoid">;
TORCH_MODULE(Sigmoid);
using LogSigmoidImpl = Approximating<"logsigmoid">;
TORCH_MODULE(LogSigmoid);
using TanhImpl = Approximating<"tanh">;
TORCH_MODULE(Tanh);
using TanhshrinkImpl = Approximating<"tanhshrink">;
TORCH_MODULE(Tanhshrink);
using SoftsignImpl = Approximating<"softsign">;
TORCH_MODULE(Softsign);
using SoftplusImpl = Approximating<"softplus", torch::nn::SoftplusOptions>;
TORCH_MODULE(Softplus);
using ELUImpl = Approximating<"elu", torch::nn::ELUOptions>;
TORCH_MODULE(ELU);
using CELUImpl = Approximating<"celu", torch::nn::CELUOptions>;
TORCH_MODULE(CELU);
using SELUImpl = Approximating<"selu", torch::nn::SELUOptions>;
TORCH_MODULE(SELU);

using ReLUImpl = Exact<"relu", torch::nn::ReLUOptions>;
TORCH_MODULE(ReLU);
using ReLU6Impl = Exact<"relu6", torch::nn::ReLU6Options>;
TORCH_MODULE(ReLU6);
using LeakyReLUImpl = Exact<"leaky_relu", torch::nn::LeakyReLUOptions>;
TORCH_MODULE(LeakyReLU);
using ThresholdImpl = Exact<"threshold", torch::nn::ThresholdOptions>;
TORCH_MODULE(Threshold);
using HardtanhImpl = Exact<"hardtanh", torch::nn::HardtanhOptions>;
TORCH_MODULE(Hardtanh);
using HardsigmoidImpl = Exact<"hardsigmoid">;
TORCH_MODULE(Hardsigmoid);
using HardshrinkImpl = Exact<"hardshrink", torch::nn::HardshrinkOptions>;
TORCH_MODULE(Hardshrink);
using SoftshrinkImpl = Exact<"softshrink", torch::nn::SoftshrinkOptions>;
TORCH_MODULE(Softshrink);

// In evaluation a LeakyReLU with the mean slope. In training it is torch's own: slopes are random.
class RReLUImpl : public torch::nn::Cloneable<RReLUImpl> {
 public:
  explicit RReLUImpl(const torch::nn::RReLUOptions& options = {}) : options(options) {}

  void reset() override {}

  at::Tensor forward(const at::Tensor& x) {
    return functional::rrelu(x, options.lower(), options.upper(), is_training(), options.inplace());
  }

  torch::nn::RReLUOptions options;
};
TORCH_MODULE(RReLU);

// One bit while the weight is frozen. The gradient of a weight that learns needs the input where it
// is negative, and then this is torch's own.
class PReLUImpl : public torch::nn::Cloneable<PReLUImpl> {
 public:
  explicit PReLUImpl(const torch::nn::PReLUOptions& options = {}) : options(options) { reset(); }

  void reset() override {
    weight = register_parameter("weight", torch::full({options.num_parameters()}, options.init()));
  }

  at::Tensor forward(const at::Tensor& x) {
    const bool learns = at::GradMode::is_enabled() && weight.requires_grad();
    return learns ? at::prelu(x, weight) : functional::prelu(x, weight);
  }

  torch::nn::PReLUOptions options;
  at::Tensor weight;
};
TORCH_MODULE(PReLU);

// torch's dropout, with the same mask for the same state of torch's generator (so ranks seed that,
// and there is no stream); saves one bit per element instead of a float. In place it is torch's
// own.
class DropoutImpl : public torch::nn::Cloneable<DropoutImpl> {
 public:
  explicit DropoutImpl(double p) : DropoutImpl(torch::nn::DropoutOptions(p)) {}
  explicit DropoutImpl(const torch::nn::DropoutOptions& options = {}) : options(options) {}

  void reset() override {}

  at::Tensor forward(at::Tensor x) {
    if (!options.inplace()) return functional::dropout(x, options.p(), is_training());
    return at::dropout_(x, options.p(), is_training());
  }

  torch::nn::DropoutOptions options;
};
TORCH_MODULE(Dropout);

// torch's max pooling; saves 4 bits per output, the place in the window, instead of the input and a
// 64-bit index per output. Windows of more than 16 places are torch's own.
class MaxPool2dImpl : public torch::nn::Cloneable<MaxPool2dImpl> {
 public:
  MaxPool2dImpl(torch::ExpandingArray<2> kernel_size)
      : MaxPool2dImpl(torch::nn::MaxPool2dOptions(kernel_size)) {}
  explicit MaxPool2dImpl(const torch::nn::MaxPool2dOptions& options) : options(options) {}

  void reset() override {}

  at::Tensor forward(const at::Tensor& x) {
    return functional::max_pool2d(x, options.kernel_size(), options.stride(), options.padding(),
                                  options.dilation(), options.ceil_mode());
  }

  torch::nn::MaxPool2dOptions options;
};
TORCH_MODULE(MaxPool2d);

// Any pointwise function with the gradient of a step table; steps() in tensors.h finds one.
class StepwiseImpl : public torch::nn::Cloneable<StepwiseImpl> {
 public:
  StepwiseImpl(PointwiseFunction function, StepTable table)
      : function(std::move(function)), table(std::move(table)) {}

  void reset() override {}

  at::Tensor forward(const at::Tensor& x) {
    const bool has_gradient = at::GradMode::is_enabled() && x.requires_grad();
    return has_gradient ? functional::stepwise(x, function, table) : function(x);
  }

  PointwiseFunction function;
  StepTable table;
};
TORCH_MODULE(Stepwise);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_H_
