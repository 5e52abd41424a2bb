#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <slimgrad/error.h>
#include <slimgrad/nn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <sstream>
#include <vector>

namespace slimgrad::nn {
namespace {

using Call = std::function<at::Tensor(const at::Tensor&)>;

struct Pair {
  const char* name;
  Call ours, torchs;
};

template <typename Module>
Module in_evaluation(Module module) {
  module->eval();
  return module;
}

// Its weight takes no gradient.
template <typename Module>
Module frozen(Module module) {
  module->weight.requires_grad_(false);
  return module;
}

template <typename Module>
Call call(Module module) {
  return [module](const at::Tensor& x) mutable { return module->forward(x); };
}

const FewbitOptions kTwoBits = FewbitOptions().bits(2);

std::vector<Pair> approximating() {
  return {
      {"GELU", call(GELU()), call(torch::nn::GELU())},
      {"GELU tanh", call(GELU(kTwoBits, torch::nn::GELUOptions().approximate("tanh"))),
       call(torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")))},
      {"GELU exact", call(GELU(FewbitOptions().exact(true))), call(torch::nn::GELU())},
      {"SiLU", call(SiLU(kTwoBits)), call(torch::nn::SiLU())},
      {"SiLU exact", call(SiLU(FewbitOptions().exact(true))), call(torch::nn::SiLU())},
      {"Mish", call(Mish()), call(torch::nn::Mish())},
      {"Mish exact", call(Mish(FewbitOptions().exact(true))), call(torch::nn::Mish())},
      {"Hardswish", call(Hardswish()), [](const at::Tensor& x) { return at::hardswish(x); }},
      {"Sigmoid", call(Sigmoid()), call(torch::nn::Sigmoid())},
      {"LogSigmoid", call(LogSigmoid()), call(torch::nn::LogSigmoid())},
      {"Tanh", call(Tanh()), call(torch::nn::Tanh())},
      {"Tanhshrink", call(Tanhshrink()), call(torch::nn::Tanhshrink())},
      {"Softsign", call(Softsign()), call(torch::nn::Softsign())},
      {"Softplus", call(Softplus(kTwoBits, torch::nn::SoftplusOptions().beta(2))),
       call(torch::nn::Softplus(torch::nn::SoftplusOptions().beta(2)))},
      {"ELU", call(ELU(FewbitOptions(), torch::nn::ELUOptions().alpha(0.5))),
       call(torch::nn::ELU(torch::nn::ELUOptions().alpha(0.5)))},
      {"CELU", call(CELU(FewbitOptions(), torch::nn::CELUOptions().alpha(0.5))),
       call(torch::nn::CELU(torch::nn::CELUOptions().alpha(0.5)))},
      {"SELU", call(SELU()), call(torch::nn::SELU())},
  };
}

std::vector<Pair> exact() {
  const auto slope = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  const torch::nn::ThresholdOptions threshold(0.1, 2);
  const auto init = torch::nn::PReLUOptions().init(0.3);
  const auto box = torch::nn::HardtanhOptions().min_val(-2).max_val(1);
  return {
      {"ReLU", call(ReLU()), call(torch::nn::ReLU())},
      {"ReLU6", call(ReLU6()), call(torch::nn::ReLU6())},
      {"LeakyReLU", call(LeakyReLU(slope)), call(torch::nn::LeakyReLU(slope))},
      {"RReLU", call(in_evaluation(RReLU())), call(in_evaluation(torch::nn::RReLU()))},
      {"PReLU", call(frozen(PReLU(init))), call(frozen(torch::nn::PReLU(init)))},
      {"Threshold", call(Threshold(threshold)), call(torch::nn::Threshold(threshold))},
      {"Hardtanh", call(Hardtanh(box)), call(torch::nn::Hardtanh(box))},
      {"Hardshrink", call(Hardshrink()), call(torch::nn::Hardshrink())},
      {"Softshrink", call(Softshrink()), call(torch::nn::Softshrink())},
  };
}

at::Tensor gradient_of(const Call& call, const at::Tensor& x, const at::Tensor& gradient) {
  return torch::autograd::grad({call(x)}, {x}, {gradient})[0];
}

at::Tensor input() { return (3 * torch::randn({33, 77})).requires_grad_(); }

TEST(NnActivations, ForwardIsTorchs) {
  const at::Tensor x = input();
  for (const auto& pairs : {approximating(), exact()}) {
    for (const Pair& pair : pairs) {
      EXPECT_TRUE(pair.ours(x).equal(pair.torchs(x))) << pair.name;
      EXPECT_TRUE(pair.ours(x.detach()).equal(pair.torchs(x))) << pair.name;
    }
  }
}

TEST(NnActivations, GradientIsNearTorchs) {
  const at::Tensor x = input(), gradient = torch::ones({33, 77});
  for (const Pair& pair : approximating()) {
    const at::Tensor difference =
        gradient_of(pair.ours, x, gradient) - gradient_of(pair.torchs, x, gradient);
    const bool is_exact = std::string_view(pair.name).ends_with("exact");
    EXPECT_LT(difference.abs().max().item<float>(), is_exact ? 4e-4 : 0.5) << pair.name;
  }
}

TEST(NnActivations, PiecewiseConstantDerivativesAreExact) {
  const at::Tensor edges = torch::tensor({0.0f, -0.0f, 6.0f, 1.0f, -2.0f, 0.5f, -0.5f, 0.1f});
  for (const at::Tensor& x : {input(), edges.requires_grad_()}) {
    const at::Tensor gradient = torch::randn(x.sizes());
    for (const Pair& pair : exact())
      EXPECT_TRUE(gradient_of(pair.ours, x, gradient).equal(gradient_of(pair.torchs, x, gradient)))
          << pair.name;
  }
  // torch divides by 6, a level is 1/6: one rounding apart.
  const at::Tensor x = input(), gradient = torch::randn({33, 77});
  EXPECT_TRUE(gradient_of(call(Hardsigmoid()), x, gradient)
                  .allclose(gradient_of([](const at::Tensor& x) { return at::hardsigmoid(x); }, x,
                                        gradient),
                            1e-6, 0));
}

TEST(NnActivations, RReLUDrawsSlopesInTraining) {
  const at::Tensor x = -torch::ones({4096});
  const at::Tensor y = RReLU()->forward(x);
  EXPECT_GT(y.std().item<double>(), 0.01);
  EXPECT_NEAR(y.mean().item<double>(), -(1.0 / 8 + 1.0 / 3) / 2, 0.005);
}

TEST(NnActivations, PReLUFollowsItsWeightAndLetsItLearn) {
  PReLU module = frozen(PReLU());
  const at::Tensor x = -torch::ones({5});
  EXPECT_EQ(module->forward(x)[0].item<float>(), -0.25f);
  module->weight.fill_(0.5);
  EXPECT_EQ(module->forward(x)[0].item<float>(), -0.5f);
  PReLU learning(torch::nn::PReLUOptions().num_parameters(3));
  learning->forward(-torch::ones({2, 3})).sum().backward();
  EXPECT_TRUE(learning->weight.grad().equal(-2 * torch::ones({3})));
}

TEST(NnActivations, GradientIsLevelTimesGradient) {
  const at::Tensor x = input(), gradient = torch::randn({33, 77});
  GELU module;
  const StepTable& table = module->activation().table();
  ASSERT_EQ(table.levels.size(), 8u);
  const at::Tensor borders = torch::tensor(table.borders).to(at::kFloat);
  const at::Tensor levels = torch::tensor(table.levels).to(at::kFloat);
  const at::Tensor expected = gradient * levels.index({torch::bucketize(x.detach(), borders)});
  EXPECT_TRUE(gradient_of(call(module), x, gradient).equal(expected));
}

TEST(NnActivations, WorksInASequentialAndClones) {
  torch::nn::Sequential model(torch::nn::Linear(8, 16), GELU(kTwoBits),
                              ReLU(torch::nn::ReLUOptions().inplace(true)),
                              torch::nn::Linear(16, 2));
  model->forward(torch::randn({5, 8})).sum().backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
  const at::Tensor x = torch::randn({5, 8});
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_TRUE(copy->forward(x).equal(model->forward(x)));
  EXPECT_NE(std::dynamic_pointer_cast<GELUImpl>(copy->ptr(1)), nullptr);
  std::ostringstream text;
  text << *model;
  EXPECT_THAT(text.str(), testing::HasSubstr("slimgrad::nn::gelu(4 levels)"));
  EXPECT_EQ(model[1]->name(), "slimgrad::nn::gelu");
}

TEST(NnActivations, MisuseThrows) {
  EXPECT_THROW(GELU(FewbitOptions().bits(0)), InvalidArgument);
  EXPECT_THROW(GELU(FewbitOptions().bits(5)), InvalidArgument);
  EXPECT_THROW(GELU(FewbitOptions().low(1).high(0)), InvalidArgument);
  EXPECT_THROW(GELU(FewbitOptions(), torch::nn::GELUOptions().approximate("sine")),
               InvalidArgument);
  EXPECT_THROW(GELU()->forward(torch::randn({3}, at::kDouble)), InvalidArgument);
  // What would have no effect.
  EXPECT_THROW(Tanh(FewbitOptions().exact(true)), InvalidArgument);
  EXPECT_THROW(ELU(FewbitOptions().exact(true)), InvalidArgument);
  EXPECT_THROW(SiLU(FewbitOptions().exact(true).bits(2)), InvalidArgument);
  EXPECT_THROW(SiLU(FewbitOptions().exact(true).high(4)), InvalidArgument);
  EXPECT_THROW(SiLU(FewbitOptions().exact(true).weight(StepWeight::kUniform)), InvalidArgument);
  const at::Tensor x = input();
  const at::Tensor first =
      torch::autograd::grad({SiLU()->forward(x).sum()}, {x}, {}, true, true)[0];
  EXPECT_THROW(torch::autograd::grad({first.sum()}, {x}), c10::Error);
}

}  // namespace
}  // namespace slimgrad::nn
