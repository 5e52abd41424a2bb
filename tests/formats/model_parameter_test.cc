#include "formats/model_parameter.h"

#include <gtest/gtest.h>

namespace slimgrad {
namespace {

TEST(ModelParameter, RoundToOnePartIn4096) {
  for (double value = 1e-4; value < 6e4; value *= 1.0123)
    EXPECT_NEAR(decode_parameter(encode_parameter(value)) / value, 1.0, 1.0 / 4096);
  for (int code = 0; code < 65536; ++code)
    EXPECT_EQ(encode_parameter(decode_parameter(static_cast<std::uint16_t>(code))), code);
  EXPECT_EQ(encode_parameter(0.0), 0);
  EXPECT_EQ(encode_parameter(1e30), 65535);
}

}  // namespace
}  // namespace slimgrad
