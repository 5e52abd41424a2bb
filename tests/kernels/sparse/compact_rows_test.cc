#include "kernels/sparse/compact_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "compact_samples.h"
#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

struct Case {
  std::int64_t rows, columns;
  std::uint64_t first_index;
  std::vector<std::int64_t> block_starts;  // the first is 0
};

struct Lists {
  std::vector<float> values;
  std::vector<std::int32_t> offsets;
  std::vector<std::int64_t> starts;
};

constexpr std::int32_t kColumnStep = 3, kRowStep = -1000;
constexpr std::int64_t kFirstStart = 5;  // Lists may begin anywhere.

// Pruned by the specification of apply(), then gone through one by one.
template <typename T>
Lists expected_lists(const LoopTreatment& treatment, const std::vector<T>& values, const Case& c,
                     std::int64_t first, std::int64_t last) {
  const std::vector<T> pruned = pruned_values(treatment, values, c.first_index);
  Lists lists{
      std::vector<float>(kFirstStart), std::vector<std::int32_t>(kFirstStart), {kFirstStart}};
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t column = first; column < last; ++column) {
      const std::uint32_t bits =
          float_bits(pruned[static_cast<std::size_t>(row * c.columns + column)]);
      if ((bits << 1) == 0) continue;
      lists.values.push_back(std::bit_cast<float>(bits));
      lists.offsets.push_back(
          static_cast<std::int32_t>((column - first) * kColumnStep + row * kRowStep));
    }
    lists.starts.push_back(static_cast<std::int64_t>(lists.values.size()));
  }
  return lists;
}

template <typename T>
void expect_lists(const LoopTreatment& treatment, const std::vector<T>& values, const Case& c) {
  for_each_target([&](const char* target) {
    std::vector<Lists> found(c.block_starts.size());
    std::vector<CompactBlock> blocks;
    std::vector<std::int32_t> row_offsets;
    for (std::int32_t row = 0; row < c.rows; ++row) row_offsets.push_back(row * kRowStep);
    for (std::size_t b = 0; b < found.size(); ++b) {
      const std::int64_t first = c.block_starts[b];
      const std::int64_t last = b + 1 < found.size() ? c.block_starts[b + 1] : c.columns;
      const auto room =
          static_cast<std::size_t>(kFirstStart + c.rows * (last - first)) + kCompactSlack;
      found[b] = {std::vector<float>(room), std::vector<std::int32_t>(room),
                  std::vector<std::int64_t>(static_cast<std::size_t>(c.rows) + 1)};
      found[b].starts[0] = kFirstStart;
      blocks.push_back({.first_column = first,
                        .num_columns = last - first,
                        .column_step = kColumnStep,
                        .row_offsets = row_offsets.data(),
                        .values = found[b].values.data(),
                        .offsets = found[b].offsets.data(),
                        .starts = found[b].starts.data()});
    }
    compact_rows<T>(treatment, {values.data(), c.rows, c.columns, c.first_index}, blocks);
    for (std::size_t b = 0; b < found.size(); ++b) {
      const Lists expected = expected_lists(treatment, values, c, blocks[b].first_column,
                                            blocks[b].first_column + blocks[b].num_columns);
      ASSERT_EQ(found[b].starts, expected.starts) << target << ", block " << b;
      found[b].values.resize(expected.values.size());
      found[b].offsets.resize(expected.offsets.size());
      EXPECT_EQ(bits_of(found[b].values), bits_of(expected.values)) << target << ", block " << b;
      EXPECT_EQ(found[b].offsets, expected.offsets) << target << ", block " << b;
    }
  });
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {1, 1, 0, {0}},
      {70, 1, 0, {0}},
      {9, 7, 3, {0, 4}},
      {40, 16, 16, {0}},
      {300, 16, 48, {0}},  // several rounds of rows
      {700, 8, 5, {0}},
      {100, 64, 64, {0}},
      {60, 100, 700, {0, 8, 31}},
      {5, 64, 64, {0, 32}},
      {3, 100, 700, {0, 8, 31}},
      {2, 1024, 1 << 20, {0, 512}},
      {2, 1030, 1030, {0}},
      {2, 2100, 4200, {0, 1051, 2099}},
      {1, 300, (std::uint64_t{1} << 38) - 100, {0}},  // across a carry in the counter
      {0, 8, 0, {0}},
  };
  return kCases;
}

template <typename T>
class CompactRows : public testing::Test {};
using ValueTypes = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(CompactRows, ValueTypes);

TYPED_TEST(CompactRows, KeepsWhatPruningKeeps) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.columns << " from " << c.first_index);
    const auto values = lognormal_values<TypeParam>(c.rows * c.columns);
    for (const float threshold : {0.5f, 4.0f, 32.0f}) expect_lists(pruning(threshold), values, c);
    expect_lists(LoopTreatment{}, values, c);
  }
}

// Stretches of rows, with offsets for every column: as if the rows were given one by one.
TYPED_TEST(CompactRows, TakesStretchesOfRowsAndOffsetsOfColumns) {
  struct Stretch {
    std::int64_t rows, columns, stride;
  };
  for (const Stretch& c : {Stretch{9, 64, 64},
                           {7, 16, 100},
                           {12, 300, 700},
                           {3, 2500, 4100},
                           {5, 100, 100},
                           {40, 16, 16}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.columns << " of " << c.stride);
    const auto values = lognormal_values<TypeParam>(c.rows * c.stride);
    const std::uint64_t first_index = 77;
    for (const LoopTreatment& treatment : {pruning(4.0f), LoopTreatment{}}) {
      const auto pruned = pruned_values(treatment, values, first_index);
      std::vector<std::int32_t> row_offsets, column_offsets;
      for (std::int32_t r = 0; r < c.rows; ++r) row_offsets.push_back(r * 100000);
      for (std::int32_t i = 0; i < c.columns; ++i) column_offsets.push_back(i * i % 9973);
      std::vector<float> expected;
      std::vector<std::int32_t> expected_offsets;
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t i = 0; i < c.columns; ++i) {
          const auto x = pruned[static_cast<std::size_t>(r * c.stride + i)];
          if (float_bits(x) << 1 == 0) continue;
          expected.push_back(to_float(x));
          expected_offsets.push_back(row_offsets[static_cast<std::size_t>(r)] +
                                     column_offsets[static_cast<std::size_t>(i)]);
        }
      for_each_target([&](const char* target) {
        const auto room = static_cast<std::size_t>(c.rows * c.columns) + kCompactSlack;
        std::vector<float> found(room);
        std::vector<std::int32_t> offsets(room);
        std::vector<std::int64_t> starts(static_cast<std::size_t>(c.rows) + 1);
        const CompactBlock block{.first_column = 0,
                                 .num_columns = c.columns,
                                 .column_step = 0,
                                 .column_offsets = column_offsets.data(),
                                 .row_offsets = row_offsets.data(),
                                 .values = found.data(),
                                 .offsets = offsets.data(),
                                 .starts = starts.data()};
        compact_rows<TypeParam>(
            treatment, {values.data(), c.rows, c.columns, first_index, c.stride}, {&block, 1});
        ASSERT_EQ(starts.back(), static_cast<std::int64_t>(expected.size())) << target;
        found.resize(expected.size());
        offsets.resize(expected.size());
        EXPECT_EQ(bits_of(found), bits_of(expected)) << target;
        EXPECT_EQ(offsets, expected_offsets) << target;
      });
    }
  }
}

// Where the leading digits of draw and probability agree, the specification decides.
TEST(CompactRowsDraws, AreRefinedWhereTheyDoNotDecide) {
  const Case c{4, 96, 192, {0, 40}};
  const LoopTreatment treatment = pruning(8.0f);
  expect_lists(treatment, undecided_values(treatment, c.first_index, 4 * 96), c);
}

TEST(CompactRowsRules, NonFiniteValuesSurviveAndZerosOfBothSignsDoNot) {
  const Case c{2, 40, 0, {0}};
  expect_lists(pruning(2.0f), special_values(), c);
  expect_lists(LoopTreatment{}, special_values(), c);
}

TEST(CompactRowsRules, ThresholdsWithoutAnInverseWork) {
  const Case c{3, 24, 0, {0}};
  std::vector<float> values = lognormal_values<float>(72);
  expect_lists(pruning(0x1p126f), values, c);
  for (float& value : values) value *= 0x1p-130f;
  expect_lists(pruning(0x1p-129f), values, c);
}

}  // namespace
}  // namespace slimgrad::kernels
