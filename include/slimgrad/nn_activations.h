// torch::nn's activation modules with a few bits kept for backward. They take torch's options;
// those whose table is an approximation take FewbitOptions in front:
//
//   slimgrad::nn::GELU()                                        3 bits
//   slimgrad::nn::GELU(slimgrad::nn::FewbitOptions().bits(2))
//   slimgrad::nn::GELU(slimgrad::nn::FewbitOptions().exact(true))
//   slimgrad::nn::ELU(slimgrad::nn::FewbitOptions(), torch::nn::ELUOptions().alpha(0.5))
//   slimgrad::nn::ReLU(torch::nn::ReLUOptions().inplace(true))  exact, 1 bit
#ifndef SLIMGRAD_NN_ACTIVATIONS_H_
#define SLIMGRAD_NN_ACTIVATIONS_H_

#include <torch/nn/cloneable.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/options/activation.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include <slimgrad/activations.h>
#include <slimgrad/error.h>

namespace slimgrad::nn {

struct FewbitOptions {
  TORCH_ARG(int, bits) = 3;  // 1 to 4
  // For GELU, SiLU and Mish: keeps the output and one bit, so that there is no table to choose.
  TORCH_ARG(bool, exact) = false;
  TORCH_ARG(double, low) = -10;  // the interval that the table is made for
  TORCH_ARG(double, high) = 10;
  TORCH_ARG(StepWeight, weight) = StepWeight::kNormal;
};

// Throws InvalidArgument, in the name of the activation, for options that would have no effect.
inline void check_fewbit_options(const FewbitOptions& fewbit, const char* name, bool can_be_exact) {
  if (!fewbit.exact()) return;
  const std::string op = "[" + std::string(name) + "] expected ";
  if (!can_be_exact) throw InvalidArgument(op + "1 to 4 bits, got exact");
  const FewbitOptions other;
  if (fewbit.bits() != other.bits() || fewbit.low() != other.low() ||
      fewbit.high() != other.high() || fewbit.weight() != other.weight())
    throw InvalidArgument(op + "either exact or a table of bits, interval and weight, got both");
}

// Options of those that torch gives none.
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

// In evaluation a LeakyReLU with the mean slope. In training torch's own: its slopes are random.
class RReLUImpl : public FewbitModule<RReLUImpl> {
 public:
  explicit RReLUImpl(const torch::nn::RReLUOptions& options = {})
      : FewbitModule(activation_call("leaky_relu",
                                     torch::nn::LeakyReLUOptions()
                                         .negative_slope((options.lower() + options.upper()) / 2)
                                         .inplace(options.inplace())),
                     FewbitOptions()),
        options_(options) {}

  at::Tensor forward(at::Tensor x) {
    return is_training()
               ? torch::nn::functional::detail::rrelu(std::move(x), options_.lower(),
                                                      options_.upper(), true, options_.inplace())
               : FewbitModule::forward(x);
  }

 private:
  torch::nn::RReLUOptions options_;
};
TORCH_MODULE(RReLU);

// With one weight that is not trained: its gradient would need the input. Throws
// InvalidArgument for more.
class PReLUImpl : public torch::nn::Cloneable<PReLUImpl> {
 public:
  explicit PReLUImpl(const torch::nn::PReLUOptions& options = {}) : options_(options) {
    if (options.num_parameters() != 1)
      throw InvalidArgument("[PReLU] expected one parameter, got " +
                            std::to_string(options.num_parameters()));
    reset();
  }

  void reset() override {
    weight = register_parameter("weight", torch::full({1}, options_.init()),
                                /*requires_grad=*/false);
  }

  at::Tensor forward(const at::Tensor& x) {
    const double slope = weight.item<double>();
    // Made anew only when a weight was loaded: finding a table takes a moment.
    if (!activation_ || slope != slope_)
      activation_.emplace(
          activation_call("leaky_relu", torch::nn::LeakyReLUOptions().negative_slope(slope)), 1);
    slope_ = slope;
    return (*activation_)(x);
  }

  at::Tensor weight;

 private:
  torch::nn::PReLUOptions options_;
  std::optional<FewbitActivation> activation_;
  double slope_ = 0;
};
TORCH_MODULE(PReLU);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_ACTIVATIONS_H_
