#include "kernels/sparse_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

constexpr std::int64_t kDense = 4096, kDenseStride = 200, kOutStride = 120, kOut = 400;

struct Problem {
  std::vector<float> values, dense = std::vector<float>(kDense);
  std::vector<std::int32_t> offsets;
  std::vector<Run> runs;
  std::vector<Sum> sums;
};

// Sums of no run, of empty runs, of one and of many survivors.
Problem make_problem(const SumShape& shape) {
  std::mt19937 random(static_cast<unsigned>(shape.eights * 16 + shape.rows));
  std::uniform_real_distribution<float> uniform(-1, 1);
  Problem p;
  for (float& x : p.dense) x = uniform(random);
  const std::int64_t reach = (shape.rows - 1) * shape.dense_stride + 8 * shape.eights;
  for (const std::int64_t num_runs : {0, 1, 1, 2, 3, 5}) {
    const auto first_run = static_cast<std::int64_t>(p.runs.size());
    for (std::int64_t r = 0; r < num_runs; ++r) {
      const auto begin = static_cast<std::int64_t>(p.values.size());
      const std::int64_t displacement = 1000 + r;
      const unsigned length = random() % 8;
      for (unsigned s = 0; s < length; ++s) {
        p.values.push_back(uniform(random));
        const auto place = static_cast<std::int64_t>(random() % (kDense - reach));
        p.offsets.push_back(static_cast<std::int32_t>(place - displacement));  // also below zero
      }
      p.runs.push_back({begin, begin + length, displacement});
    }
    const auto index = static_cast<std::int64_t>(p.sums.size());
    p.sums.push_back({index * kOut, first_run, first_run + num_runs});
  }
  return p;
}

void expect_sums(const SumShape& shape, bool accumulate) {
  const Problem p = make_problem(shape);
  for_each_target([&](const char* target) {
    std::vector<float> out(p.sums.size() * kOut, 7.0f);
    sparse_sums(shape, {p.values.data(), p.offsets.data()}, p.dense.data(), p.runs, p.sums,
                out.data(), accumulate);
    for (std::size_t i = 0; i < p.sums.size(); ++i) {
      std::vector<double> expected(kOut, 7.0);
      for (int row = 0; row < shape.rows; ++row)
        for (int column = 0; column < 8 * shape.eights; ++column) {
          double& total = expected[static_cast<std::size_t>(row * kOutStride + column)];
          if (!accumulate) total = 0;
          for (std::int64_t r = p.sums[i].first_run; r < p.sums[i].last_run; ++r)
            for (std::int64_t s = p.runs[static_cast<std::size_t>(r)].begin;
                 s < p.runs[static_cast<std::size_t>(r)].end; ++s) {
              const auto at = static_cast<std::size_t>(s);
              const std::int64_t place = p.runs[static_cast<std::size_t>(r)].displacement +
                                         p.offsets[at] + row * kDenseStride + column;
              total += static_cast<double>(p.values[at]) *
                       static_cast<double>(p.dense[static_cast<std::size_t>(place)]);
            }
        }
      for (std::size_t k = 0; k < expected.size(); ++k)
        ASSERT_NEAR(static_cast<double>(out[i * kOut + k]), expected[k], 1e-5)
            << target << ", sum " << i << ", at " << k;
    }
  });
}

TEST(SparseSums, EqualPlainLoopsForEveryShape) {
  for (int rows = 1; rows <= kMaxSumRows; ++rows)
    for (int eights = 1; eights * rows <= kMaxEights; ++eights)
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << eights << " eights");
        expect_sums({eights, rows, kDenseStride, kOutStride}, accumulate);
      }
}

}  // namespace
}  // namespace slimgrad::kernels
