#include "trainer/run.h"

#include <gtest/gtest.h>

#include <slimgrad/error.h>

namespace slimgrad::trainer {
namespace {

TEST(Schedule, GoesAsItsNameSays) {
  EXPECT_DOUBLE_EQ(rate_share("onecycle", 0, 10), 0.25);  // the middle of the first step
  EXPECT_DOUBLE_EQ(rate_share("onecycle", 9, 10), 0.0625);
  EXPECT_NEAR(rate_share("onecycle", 200, 1000), 1, 0.003);
  EXPECT_NEAR(rate_share("cosine", 0, 1000), 1, 1e-5);
  EXPECT_NEAR(rate_share("cosine", 499, 999), 0.5, 1e-12);
  EXPECT_NEAR(rate_share("cosine", 999, 1000), 0, 1e-5);
  EXPECT_EQ(rate_share("step", 49, 100), 1);
  EXPECT_EQ(rate_share("step", 50, 100), 0.1);
  EXPECT_EQ(rate_share("step", 75, 100), 0.01);
  EXPECT_EQ(rate_share("constant", 99, 100), 1);
  EXPECT_THROW(rate_share("exponential", 0, 1), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad::trainer
