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

#include <optional>
#include <ostream>
#include <utility>

#include <slimgrad/activations.h>

namespace slimgrad::nn {

struct FewbitOptions {
  TORCH_ARG(int, bits) = 3;        // 1 to 4
  TORCH_ARG(bool, exact) = false;  // for GELU, SiLU and Mish: keeps the output and one bit
  TORCH_ARG(double, low) = -10;    // the interval that the table is made for
  TORCH_ARG(double, high) = 10;
  TORCH_ARG(StepWeight, weight) = StepWeight::kNormal;
};

// What most modules share. They have no parameters, and a clone is a copy.
template <typename Derived>
class FewbitModule : public torch::nn::Cloneable<Derived> {
 public:
  FewbitModule(ActivationCall call, const FewbitOptions& kept)
      : activation_(std::move(call), kept.bits(), kept.low(), kept.high(), kept.weight()) {}

  void reset() override {}
  void pretty_print(std::ostream& stream) const override {
    stream << "slimgrad::nn::" << activation_.name() << '(' << activation_.table().levels.size()
           << " levels)";
  }

  at::Tensor forward(const at::Tensor& x) { return activation_(x); }

  const FewbitActivation& activation() const { return activation_; }

 private:
  FewbitActivation activation_;
};

// One that can also be inverted.
template <typename Derived>
class InvertibleModule : public FewbitModule<Derived> {
 public:
  InvertibleModule(ActivationCall call, const FewbitOptions& kept)
      : FewbitModule<Derived>(std::move(call), kept), exact_(kept.exact()) {}

  void pretty_print(std::ostream& stream) const override {
    if (!exact_) return FewbitModule<Derived>::pretty_print(stream);
    stream << "slimgrad::nn::" << this->activation().name() << "(exact)";
  }

  at::Tensor forward(const at::Tensor& x) {
    return exact_ ? invertible_activation(x, this->activation().name())
                  : FewbitModule<Derived>::forward(x);
  }

 private:
  bool exact_;
};

// ---- with a table that approximates ------------------------------------------------------------

class GELUImpl : public InvertibleModule<GELUImpl> {
 public:
  explicit GELUImpl(const FewbitOptions& kept = {}, const torch::nn::GELUOptions& options = {})
      : InvertibleModule({gelu_name(options.approximate())}, kept) {}
};
TORCH_MODULE(GELU);

class SiLUImpl : public InvertibleModule<SiLUImpl> {
 public:
  explicit SiLUImpl(const FewbitOptions& kept = {}) : InvertibleModule({"silu"}, kept) {}
};
TORCH_MODULE(SiLU);

class MishImpl : public InvertibleModule<MishImpl> {
 public:
  explicit MishImpl(const FewbitOptions& kept = {}) : InvertibleModule({"mish"}, kept) {}
};
TORCH_MODULE(Mish);

class HardswishImpl : public FewbitModule<HardswishImpl> {
 public:
  explicit HardswishImpl(const FewbitOptions& kept = {}) : FewbitModule({"hardswish"}, kept) {}
};
TORCH_MODULE(Hardswish);

class SigmoidImpl : public FewbitModule<SigmoidImpl> {
 public:
  explicit SigmoidImpl(const FewbitOptions& kept = {}) : FewbitModule({"sigmoid"}, kept) {}
};
TORCH_MODULE(Sigmoid);

class LogSigmoidImpl : public FewbitModule<LogSigmoidImpl> {
 public:
  explicit LogSigmoidImpl(const FewbitOptions& kept = {}) : FewbitModule({"logsigmoid"}, kept) {}
};
TORCH_MODULE(LogSigmoid);

class TanhImpl : public FewbitModule<TanhImpl> {
 public:
  explicit TanhImpl(const FewbitOptions& kept = {}) : FewbitModule({"tanh"}, kept) {}
};
TORCH_MODULE(Tanh);

class TanhshrinkImpl : public FewbitModule<TanhshrinkImpl> {
 public:
  explicit TanhshrinkImpl(const FewbitOptions& kept = {}) : FewbitModule({"tanhshrink"}, kept) {}
};
TORCH_MODULE(Tanhshrink);

class SoftsignImpl : public FewbitModule<SoftsignImpl> {
 public:
  explicit SoftsignImpl(const FewbitOptions& kept = {}) : FewbitModule({"softsign"}, kept) {}
};
TORCH_MODULE(Softsign);

class SoftplusImpl : public FewbitModule<SoftplusImpl> {
 public:
  explicit SoftplusImpl(const FewbitOptions& kept = {},
                        const torch::nn::SoftplusOptions& options = {})
      : FewbitModule({"softplus",
                      {{"beta", options.beta()}, {"threshold", options.threshold()}},
                      {options.beta(), options.threshold()}},
                     kept) {}
};
TORCH_MODULE(Softplus);

class ELUImpl : public FewbitModule<ELUImpl> {
 public:
  explicit ELUImpl(const FewbitOptions& kept = {}, const torch::nn::ELUOptions& options = {})
      : FewbitModule({"elu", {{"alpha", options.alpha()}}, {options.alpha()}, options.inplace()},
                     kept) {}
};
TORCH_MODULE(ELU);

class CELUImpl : public FewbitModule<CELUImpl> {
 public:
  explicit CELUImpl(const FewbitOptions& kept = {}, const torch::nn::CELUOptions& options = {})
      : FewbitModule({"celu", {{"alpha", options.alpha()}}, {options.alpha()}, options.inplace()},
                     kept) {}
};
TORCH_MODULE(CELU);

class SELUImpl : public FewbitModule<SELUImpl> {
 public:
  explicit SELUImpl(const FewbitOptions& kept = {}, const torch::nn::SELUOptions& options = {})
      : FewbitModule({"selu", {}, {}, options.inplace()}, kept) {}
};
TORCH_MODULE(SELU);

// ---- exact: the derivative is piecewise constant ------------------------------------------------

class ReLUImpl : public FewbitModule<ReLUImpl> {
 public:
  explicit ReLUImpl(const torch::nn::ReLUOptions& options = {})
      : FewbitModule({"relu", {}, {}, options.inplace()}, FewbitOptions()) {}
};
TORCH_MODULE(ReLU);

class ReLU6Impl : public FewbitModule<ReLU6Impl> {
 public:
  explicit ReLU6Impl(const torch::nn::ReLU6Options& options = {})
      : FewbitModule({"relu6", {}, {}, options.inplace()}, FewbitOptions()) {}
};
TORCH_MODULE(ReLU6);

class LeakyReLUImpl : public FewbitModule<LeakyReLUImpl> {
 public:
  explicit LeakyReLUImpl(const torch::nn::LeakyReLUOptions& options = {})
      : FewbitModule({"leaky_relu",
                      {{"negative_slope", options.negative_slope()}},
                      {options.negative_slope()},
                      options.inplace()},
                     FewbitOptions()) {}
};
TORCH_MODULE(LeakyReLU);

// In evaluation a LeakyReLU with the mean slope. In training torch's own: its slopes are random.
class RReLUImpl : public FewbitModule<RReLUImpl> {
 public:
  explicit RReLUImpl(const torch::nn::RReLUOptions& options = {})
      : FewbitModule({"leaky_relu",
                      {{"negative_slope", (options.lower() + options.upper()) / 2}},
                      {(options.lower() + options.upper()) / 2},
                      options.inplace()},
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

// With one weight that is not trained: its gradient would need the input. Throws c10::Error for
// more.
class PReLUImpl : public torch::nn::Cloneable<PReLUImpl> {
 public:
  explicit PReLUImpl(const torch::nn::PReLUOptions& options = {}) : options_(options) {
    TORCH_CHECK(options.num_parameters() == 1, "[PReLU] expected one parameter, got ",
                options.num_parameters());
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
      activation_.emplace(ActivationCall{"leaky_relu", {{"negative_slope", slope}}, {slope}, false},
                          1);
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

class ThresholdImpl : public FewbitModule<ThresholdImpl> {
 public:
  explicit ThresholdImpl(const torch::nn::ThresholdOptions& options)
      : FewbitModule({"threshold",
                      {{"threshold", options.threshold()}},
                      {options.threshold(), options.value()},
                      options.inplace()},
                     FewbitOptions()) {}
};
TORCH_MODULE(Threshold);

class HardtanhImpl : public FewbitModule<HardtanhImpl> {
 public:
  explicit HardtanhImpl(const torch::nn::HardtanhOptions& options = {})
      : FewbitModule({"hardtanh",
                      {{"min_val", options.min_val()}, {"max_val", options.max_val()}},
                      {options.min_val(), options.max_val()},
                      options.inplace()},
                     FewbitOptions()) {}
};
TORCH_MODULE(Hardtanh);

class HardsigmoidImpl : public FewbitModule<HardsigmoidImpl> {
 public:
  HardsigmoidImpl() : FewbitModule({"hardsigmoid"}, FewbitOptions()) {}
};
TORCH_MODULE(Hardsigmoid);

class HardshrinkImpl : public FewbitModule<HardshrinkImpl> {
 public:
  explicit HardshrinkImpl(const torch::nn::HardshrinkOptions& options = {})
      : FewbitModule({"hardshrink", {{"lambd", options.lambda()}}, {options.lambda()}},
                     FewbitOptions()) {}
};
TORCH_MODULE(Hardshrink);

class SoftshrinkImpl : public FewbitModule<SoftshrinkImpl> {
 public:
  explicit SoftshrinkImpl(const torch::nn::SoftshrinkOptions& options = {})
      : FewbitModule({"softshrink", {{"lambd", options.lambda()}}, {options.lambda()}},
                     FewbitOptions()) {}
};
TORCH_MODULE(Softshrink);

}  // namespace slimgrad::nn

#endif  // SLIMGRAD_NN_ACTIVATIONS_H_
