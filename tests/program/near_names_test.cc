#include "program/near_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slimgrad::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kNames = {"layers.0.weight", "layers.0.bias", "layers.1.weight",
                                         "layers.1.bias",   "head.weight",   "head.bias"};

TEST(NearNames, TypingErrors) {
  EXPECT_EQ(near_names("layers.0.wieght", kNames)[0], "layers.0.weight");
  EXPECT_EQ(near_names("layers.0.wieght", kNames)[1], "layers.1.weight");
  EXPECT_EQ(near_names("layer.1.bias", kNames)[0], "layers.1.bias");
  EXPECT_THAT(near_names("head_bias", kNames), ElementsAre("head.bias"));
}

TEST(NearNames, PartsOfNames) {
  EXPECT_THAT(near_names("bias", kNames),
              ElementsAre("layers.0.bias", "layers.1.bias", "head.bias"));
  EXPECT_THAT(near_names("head", kNames), ElementsAre("head.weight", "head.bias"));
}

TEST(NearNames, NothingNear) {
  EXPECT_THAT(near_names("embedding.table", kNames), IsEmpty());
  EXPECT_THAT(near_names("", kNames), IsEmpty());
  EXPECT_THAT(near_names("x", {}), IsEmpty());
  EXPECT_THAT(near_names("x", std::vector{std::string(5000, 'y')}), IsEmpty());
}

}  // namespace
}  // namespace slimgrad::program
