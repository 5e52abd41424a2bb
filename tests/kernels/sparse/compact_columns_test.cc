#include "kernels/sparse/compact_columns.h"

#include <gtest/gtest.h>

#include <vector>

#include "compact_samples.h"
#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

struct Case {
  std::int64_t rows, columns;
  std::uint64_t first_index;
  std::int64_t first_column, num_columns;
};

std::vector<std::int32_t> row_offsets(std::int64_t rows) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t row = 0; row < rows; ++row)
    offsets.push_back(static_cast<std::int32_t>(row * 7 - 100));
  return offsets;
}

struct Lists {
  std::vector<float> values;
  std::vector<std::int32_t> offsets;
  std::vector<std::int64_t> starts;
};

constexpr std::int64_t kFirstStart = 3;  // Lists may begin anywhere.

// Pruned by the specification of apply(), then gone through column by column.
template <typename T>
Lists expected_lists(const LoopTreatment& treatment, const std::vector<T>& values, const Case& c) {
  const std::vector<T> pruned = pruned_values(treatment, values, c.first_index);
  const auto offsets = row_offsets(c.rows);
  Lists lists{
      std::vector<float>(kFirstStart), std::vector<std::int32_t>(kFirstStart), {kFirstStart}};
  for (std::int64_t column = 0; column < c.num_columns; ++column) {
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const auto at = static_cast<std::size_t>(row * c.columns + c.first_column + column);
      const std::uint32_t bits = float_bits(pruned[at]);
      if ((bits << 1) == 0) continue;
      lists.values.push_back(std::bit_cast<float>(bits));
      lists.offsets.push_back(offsets[static_cast<std::size_t>(row)]);
    }
    lists.starts.push_back(static_cast<std::int64_t>(lists.values.size()));
  }
  return lists;
}

template <typename T>
void expect_lists(const LoopTreatment& treatment, const std::vector<T>& values, const Case& c,
                  bool many) {
  const Lists expected = expected_lists(treatment, values, c);
  for_each_target([&](const char* target) {
    const auto room =
        static_cast<std::size_t>(kFirstStart + c.rows * c.num_columns) + kCompactSlack;
    Lists found{std::vector<float>(room), std::vector<std::int32_t>(room),
                std::vector<std::int64_t>(static_cast<std::size_t>(c.num_columns) + 1)};
    found.starts[0] = kFirstStart;
    const auto stride = static_cast<std::size_t>(c.rows) + kCompactSlack;
    std::vector<float> loose_values(stride * static_cast<std::size_t>(c.num_columns));
    std::vector<std::int32_t> loose_offsets(loose_values.size());
    std::vector<std::int64_t> ends(static_cast<std::size_t>(c.num_columns));
    const auto offsets = row_offsets(c.rows);
    compact_columns<T>(treatment, {values.data(), c.rows, c.columns, c.first_index},
                       {.first_column = c.first_column,
                        .num_columns = c.num_columns,
                        .row_offsets = offsets.data(),
                        .many = many,
                        .room = {.stride = static_cast<std::int64_t>(stride),
                                 .values = loose_values.data(),
                                 .offsets = loose_offsets.data(),
                                 .ends = ends.data()},
                        .values = found.values.data(),
                        .offsets = found.offsets.data(),
                        .starts = found.starts.data()});
    ASSERT_EQ(found.starts, expected.starts) << target;
    found.values.resize(expected.values.size());
    found.offsets.resize(expected.offsets.size());
    EXPECT_EQ(bits_of(found.values), bits_of(expected.values)) << target;
    EXPECT_EQ(found.offsets, expected.offsets) << target;
  });
}

// However many are expected.
template <typename T>
void expect_lists(const LoopTreatment& treatment, const std::vector<T>& values, const Case& c) {
  for (const bool many : {false, true}) {
    SCOPED_TRACE(many ? "many" : "few");
    expect_lists(treatment, values, c, many);
  }
}

template <typename T>
class CompactColumns : public testing::Test {};
using ValueTypes = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(CompactColumns, ValueTypes);

// Stretches of rows, and offsets of columns on top of those of rows.
TYPED_TEST(CompactColumns, TakesStretchesOfRowsAndOffsetsOfColumns) {
  const std::int64_t rows = 37, columns = 104, stride = 250;
  const auto values = lognormal_values<TypeParam>(rows * stride);
  const std::uint64_t first_index = 1000;
  for (const LoopTreatment& treatment : {pruning(4.0f), LoopTreatment{}})
    for (const bool many : {false, true}) {
      const auto pruned = pruned_values(treatment, values, first_index);
      const auto offsets = row_offsets(rows);
      std::vector<std::int32_t> column_offsets;
      for (std::int32_t c = 0; c < columns; ++c) column_offsets.push_back(-5000 * c);
      Lists expected{{}, {}, {0}};
      for (std::int64_t c = 0; c < columns; ++c) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const auto x = pruned[static_cast<std::size_t>(r * stride + c)];
          if (float_bits(x) << 1 == 0) continue;
          expected.values.push_back(to_float(x));
          expected.offsets.push_back(offsets[static_cast<std::size_t>(r)] +
                                     column_offsets[static_cast<std::size_t>(c)]);
        }
        expected.starts.push_back(static_cast<std::int64_t>(expected.values.size()));
      }
      for_each_target([&](const char* target) {
        const auto size = static_cast<std::size_t>(rows * columns) + kCompactSlack;
        const auto room = static_cast<std::size_t>((rows + 8) * columns);
        Lists found{std::vector<float>(size), std::vector<std::int32_t>(size),
                    std::vector<std::int64_t>(static_cast<std::size_t>(columns) + 1)};
        std::vector<float> room_values(room);
        std::vector<std::int32_t> room_offsets(room);
        std::vector<std::int64_t> ends(static_cast<std::size_t>(columns));
        compact_columns<TypeParam>(
            treatment, {values.data(), rows, columns, first_index, stride},
            {.first_column = 0,
             .num_columns = columns,
             .row_offsets = offsets.data(),
             .column_offsets = column_offsets.data(),
             .many = many,
             .room = {rows + 8, room_values.data(), room_offsets.data(), ends.data()},
             .values = found.values.data(),
             .offsets = found.offsets.data(),
             .starts = found.starts.data()});
        ASSERT_EQ(found.starts, expected.starts) << target;
        found.values.resize(expected.values.size());
        found.offsets.resize(expected.offsets.size());
        EXPECT_EQ(bits_of(found.values), bits_of(expected.values)) << target;
        EXPECT_EQ(found.offsets, expected.offsets) << target;
      });
    }
}

TYPED_TEST(CompactColumns, KeepsWhatPruningKeeps) {
  const Case cases[] = {
      {1, 1, 0, 0, 1},
      {70, 1, 0, 0, 1},
      {9, 7, 3, 2, 4},
      {1030, 16, 16, 0, 16},  // several rounds of rows
      {40, 64, 64, 0, 64},
      {43, 24, 40, 0, 24},
      {50, 40, 44, 0, 40},
      {13, 100, 700, 8, 23},
      {17, 256, 512, 0, 256},
      {17, 600, 1200, 256, 256},  // rows that begin between two rounds of draws
      {9, 1024, 1 << 20, 768, 256},
      {8, 300, (std::uint64_t{1} << 38) - 100, 0, 256},  // across a carry in the counter
      {0, 8, 0, 0, 8},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.columns << " from " << c.first_index);
    const auto values = lognormal_values<TypeParam>(c.rows * c.columns);
    for (const float threshold : {0.5f, 4.0f, 32.0f}) expect_lists(pruning(threshold), values, c);
    expect_lists(LoopTreatment{}, values, c);
  }
}

TEST(CompactColumnsDraws, AreRefinedWhereTheyDoNotDecide) {
  const Case c{4, 96, 192, 0, 96};
  const LoopTreatment treatment = pruning(8.0f);
  expect_lists(treatment, undecided_values(treatment, c.first_index, 4 * 96), c);
}

TEST(CompactColumnsRules, NonFiniteValuesSurviveAndZerosOfBothSignsDoNot) {
  const Case c{2, 40, 0, 0, 40};
  expect_lists(pruning(2.0f), special_values(), c);
  expect_lists(LoopTreatment{}, special_values(), c);
}

TEST(CompactColumnsRules, ThresholdsWithoutAnInverseWork) {
  const Case c{3, 24, 0, 0, 24};
  std::vector<float> values = lognormal_values<float>(72);
  expect_lists(pruning(0x1p126f), values, c);
  for (float& value : values) value *= 0x1p-130f;
  expect_lists(pruning(0x1p-129f), values, c);
}

}  // namespace
}  // namespace slimgrad::kernels
