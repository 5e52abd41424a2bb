#include "kernels/sparse/transpose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compact_samples.h"
#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
class Transpose : public testing::Test {};
using ValueTypes = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(Transpose, ValueTypes);

struct Size {
  std::int64_t rows, columns;
};
constexpr Size kSizes[] = {{1, 1}, {8, 8}, {3, 40}, {40, 3}, {16, 24}, {17, 31}, {0, 9}, {9, 0}};

TYPED_TEST(Transpose, MovesEveryElementAndNothingElse) {
  for (const Size& size : kSizes) {
    const std::int64_t rows = size.rows, columns = size.columns;
    SCOPED_TRACE(testing::Message() << rows << " x " << columns);
    const std::int64_t from_stride = columns + 5, to_stride = rows + 3;
    const auto values = lognormal_values<TypeParam>(rows * from_stride + 8);
    for_each_target([&](const char* target) {
      std::vector<float> to(static_cast<std::size_t>(columns * to_stride + 8), -1.0f);
      transpose<TypeParam, float>(values.data(), from_stride, rows, columns, to.data(), to_stride);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(to.size()); ++i) {
        const std::int64_t c = i / to_stride, r = i % to_stride;
        const bool inside = c < columns && r < rows;
        ASSERT_EQ(to[static_cast<std::size_t>(i)],
                  inside ? to_float(values[static_cast<std::size_t>(r * from_stride + c)]) : -1.0f)
            << target;
      }
    });
  }
}

TYPED_TEST(Transpose, RoundsAsTheTypeDoes) {
  std::vector<float> values = lognormal_values<float>(16 * 16);
  values[3] = 1e30f;
  values[20] = -65520.0f;
  values[77] = INFINITY;
  for_each_target([&](const char* target) {
    std::vector<TypeParam> to(values.size());
    transpose<float, TypeParam>(values.data(), 16, 16, 16, to.data(), 16);
    for (std::size_t i = 0; i < to.size(); ++i)
      ASSERT_EQ(float_bits(to[i]), float_bits(from_float<TypeParam>(values[i % 16 * 16 + i / 16])))
          << target;
  });
}

}  // namespace
}  // namespace slimgrad::kernels
