#include "kernels/sparse/sums.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

constexpr std::int64_t kDense = 4096, kDenseStride = 200, kOutStride = 120, kOut = 400;
constexpr std::int64_t kDisplacement = 1000;  // Offsets are below zero too.

struct Problem {
  std::vector<float> values, dense = std::vector<float>(kDense);
  std::vector<std::int32_t> offsets;
  std::vector<std::int64_t> starts = {0};

  SurvivorArrays survivors() const { return {values.data(), offsets.data()}; }
  std::int64_t num_lists() const { return static_cast<std::int64_t>(starts.size()) - 1; }

  // What list l adds to a column of a sum, `displaced` in dense.
  double total(std::int64_t l, std::int64_t displaced) const {
    double total = 0;
    for (auto s = static_cast<std::size_t>(starts[static_cast<std::size_t>(l)]);
         s < static_cast<std::size_t>(starts[static_cast<std::size_t>(l) + 1]); ++s)
      total += static_cast<double>(values[s]) *
               static_cast<double>(dense[static_cast<std::size_t>(offsets[s] + displaced)]);
    return total;
  }
};

// Lists of no, one and many survivors, whose rows end `reach` behind their offset.
Problem make_problem(std::int64_t reach) {
  std::mt19937 random(static_cast<unsigned>(reach));
  std::uniform_real_distribution<float> uniform(-1, 1);
  Problem p;
  for (float& x : p.dense) x = uniform(random);
  for (const int length : {0, 1, 2, 3, 0, 0, 7, 16, 5, 1, 0}) {
    for (int s = 0; s < length; ++s) {
      p.values.push_back(uniform(random));
      const auto place = static_cast<std::int64_t>(random() % (kDense - reach));
      p.offsets.push_back(static_cast<std::int32_t>(place - kDisplacement));
    }
    p.starts.push_back(static_cast<std::int64_t>(p.values.size()));
  }
  return p;
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                 const char* target) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t k = 0; k < expected.size(); ++k)
    ASSERT_NEAR(static_cast<double>(found[k]), expected[k], 1e-5) << target << ", at " << k;
}

void expect_lists(const SumShape& shape, std::int64_t out_step, bool accumulate) {
  const Problem p = make_problem((shape.rows - 1) * shape.dense_stride + 8 * shape.eights);
  const auto size = static_cast<std::size_t>(p.num_lists() * out_step + kOut);
  std::vector<double> expected(size, 7.0);
  for (std::int64_t l = 0; l < p.num_lists(); ++l)
    for (int row = 0; row < shape.rows; ++row)
      for (int column = 0; column < 8 * shape.eights; ++column) {
        double& to = expected[static_cast<std::size_t>(l * out_step + row * kOutStride + column)];
        to = (accumulate ? to : 0) + p.total(l, kDisplacement + row * kDenseStride + column);
      }
  for_each_target([&](const char* target) {
    std::vector<float> out(size, 7.0f);
    sum_lists(shape, {p.survivors(), p.starts.data(), p.num_lists()},
              p.dense.data() + kDisplacement, out.data(), out_step, accumulate);
    expect_near(out, expected, target);
  });
}

TEST(SumLists, EqualsPlainLoopsForEveryShape) {
  for (int rows = 1; rows <= kMaxSumRows; ++rows)
    for (int eights = 1; eights * rows <= kMaxEights; ++eights)
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << eights << " eights");
        expect_lists({eights, rows, kDenseStride, kOutStride}, kOut, accumulate);
      }
}

TEST(SumLists, AddUpWhereSumsOverlap) {
  for (const int rows : {1, 3}) expect_lists({3, rows, kDenseStride, kOutStride}, 8, true);
}

// Two lines of lists, the second one with another displacement; reaches that overlap, one of them
// empty.
TEST(SumReaches, EqualsPlainLoopsForEveryWidth) {
  const std::vector<Reach> reaches = {{0, 3, 1000}, {1, 4, 1001}, {2, 2, 0}, {2, 5, 1005}};
  for (int eights = 1; eights <= kMaxEights; ++eights)
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(testing::Message() << eights << " eights");
      const Problem p = make_problem(8 * eights + 16);
      const std::vector<ListLine> lines = {{p.starts.data(), 3}, {p.starts.data() + 6, 5}};
      std::vector<double> expected(reaches.size() * kOut, 7.0);
      for (std::size_t r = 0; r < reaches.size(); ++r)
        for (int column = 0; column < 8 * eights; ++column) {
          double& to = expected[r * kOut + static_cast<std::size_t>(column)];
          if (!accumulate) to = 0;
          for (std::int64_t l = reaches[r].first; l < reaches[r].last; ++l)
            to += p.total(l, reaches[r].displacement + 3 + column) +
                  p.total(l + 6, reaches[r].displacement + 5 + column);
        }
      for_each_target([&](const char* target) {
        std::vector<float> out(expected.size(), 7.0f);
        sum_reaches(eights, p.survivors(), lines, reaches, p.dense.data(), out.data(), kOut,
                    accumulate);
        expect_near(out, expected, target);
      });
    }
}

}  // namespace
}  // namespace slimgrad::kernels
