#include "trainer/parts.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <tuple>

namespace slimgrad::trainer {
namespace {

std::int64_t num_levels(const torch::Tensor& x) { return std::get<0>(torch::_unique(x)).numel(); }

TEST(FakeInt4, WeightsHaveAScaleForEachOutput) {
  const torch::Tensor weight =
      torch::tensor({{7.0f, 3.4f, -0.6f, 0.4f}, {0.07f, -0.07f, 0.016f, 0.0f}});
  const torch::Tensor expected =
      torch::tensor({{7.0f, 3.0f, -1.0f, 0.0f}, {0.07f, -0.07f, 0.02f, 0.0f}});
  EXPECT_TRUE(torch::allclose(fake_int4_weight(weight), expected, 1e-6, 1e-7));
  EXPECT_TRUE(fake_int4_weight(torch::zeros({2, 3, 1, 1})).eq(0).all().item<bool>());
}

TEST(FakeInt4, InputsWithoutSignHaveSixteenLevels) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::rand({4, 3, 5, 5});  // uniform: clipping would not pay
  const torch::Tensor y = fake_int4_input(x);
  const double scale = x.max().item<double>() / 15;
  EXPECT_TRUE(torch::allclose(y, (x / scale).round() * scale, 1e-5, 1e-6));
  EXPECT_EQ(num_levels(y), 16);
  EXPECT_LE(num_levels(fake_int4_input(x - 0.5)), 15);
}

// One value far above the rest: at the scale of the largest nothing else would be left.
TEST(FakeInt4, ClipsWhatIsRareIfThatCostsLess) {
  torch::manual_seed(1);
  torch::Tensor x = torch::randn({100, 100});
  x[0][0] = 12;
  const torch::Tensor y = fake_int4_input(x);
  const torch::Tensor by_maximum = (x / (12 / 7.0)).round() * (12 / 7.0);
  EXPECT_LT((y - x).square().mean().item<double>(),
            0.5 * (by_maximum - x).square().mean().item<double>());
  EXPECT_LT(y.max().item<double>(), 12);
}

TEST(FakeInt4, GradientsPass) {
  for (const auto& f : {fake_int4_weight, fake_int4_input}) {
    torch::Tensor x = torch::randn({3, 5}, torch::requires_grad());
    const torch::Tensor weights = torch::randn({3, 5});
    (f(x) * weights).sum().backward();
    EXPECT_TRUE(x.grad().equal(weights));
  }
}

}  // namespace
}  // namespace slimgrad::trainer
