// What bounds the products of a sparse backward pass, one thread: how fast sums of picked rows run
// from a tile of a given size, in multiply-adds of eight values a second, and what pruning and
// compaction cost.
#include <benchmark/benchmark.h>
#include <hwy/aligned_allocator.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/apply/apply.h"
#include "kernels/sparse/compact_columns.h"
#include "kernels/sparse/compact_rows.h"
#include "kernels/sparse/sums.h"

namespace slimgrad {
namespace {

// Rows of 64 columns, picked at random; totals that come from the second-level cache and go there.
void sums_from_tile(benchmark::State& state) {
  constexpr int kEights = 8;
  constexpr std::int64_t kColumns = 8 * kEights, kSums = 600;
  const std::int64_t rows = state.range(0) * 1024 / (kColumns * 4), length = state.range(1);
  std::mt19937 random(1);
  const auto dense = hwy::AllocateAligned<float>(static_cast<std::size_t>(rows * kColumns));
  std::fill_n(dense.get(), rows * kColumns, 1.0f);
  std::vector<float> values, out(static_cast<std::size_t>(kSums * kColumns));
  std::vector<std::int32_t> offsets;
  std::vector<std::int64_t> starts = {0};
  for (std::int64_t s = 0; s < kSums; ++s) {
    const auto begin = static_cast<std::int64_t>(values.size());
    // Lengths vary, as a branch predictor would learn one length.
    const std::int64_t end = begin + length - length / 4 + random() % (length / 2 + 1);
    for (std::int64_t i = begin; i < end; ++i) {
      values.push_back(1.0f);
      offsets.push_back(static_cast<std::int32_t>(random() % rows * kColumns));
    }
    starts.push_back(end);
  }
  for (auto _ : state)
    kernels::sum_lists({kEights, 1, 0, 0}, {{values.data(), offsets.data()}, starts.data(), kSums},
                       dense.get(), out.data(), kColumns, true);
  state.counters["multiply_adds"] =
      benchmark::Counter(static_cast<double>(values.size() * kEights * state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(sums_from_tile)
    ->ArgNames({"KiB", "survivors"})
    ->ArgsProduct({{24, 148, 300, 2048}, {10, 50}});

std::vector<float> lognormal_values(std::size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::vector<float> values(count);
  for (float& x : values) x = std::exp(normal(random)) * (random() & 1 ? 1.0f : -1.0f);
  return values;
}

kernels::LoopTreatment pruning() {
  kernels::LoopTreatment treatment;
  treatment.threshold = 20;  // about nine of ten vanish
  return treatment;
}

constexpr std::size_t kValues = 4096;

void prune_alone(benchmark::State& state) {
  const std::vector<float> x = lognormal_values(kValues);
  std::vector<float> out(kValues);
  const kernels::LoopTreatment treatment = pruning();
  for (auto _ : state) kernels::apply(treatment, x.data(), out.data(), kValues, 0);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kValues));
}
BENCHMARK(prune_alone);

void prune_and_compact(benchmark::State& state) {
  const std::int64_t columns = state.range(0);
  const auto rows = static_cast<std::int64_t>(kValues) / columns;
  const std::vector<float> x = lognormal_values(kValues);
  std::vector<float> values(kValues + kernels::kCompactSlack);
  std::vector<std::int32_t> offsets(values.size());
  const std::vector<std::int32_t> row_offsets(static_cast<std::size_t>(rows));
  std::vector<std::int64_t> starts(static_cast<std::size_t>(rows) + 1);
  const kernels::CompactBlock block{.first_column = 0,
                                    .num_columns = columns,
                                    .column_step = 64,
                                    .row_offsets = row_offsets.data(),
                                    .values = values.data(),
                                    .offsets = offsets.data(),
                                    .starts = starts.data()};
  const kernels::LoopTreatment treatment = pruning();
  for (auto _ : state)
    kernels::compact_rows<float>(treatment, {x.data(), rows, columns, 0}, {&block, 1});
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kValues));
}
BENCHMARK(prune_and_compact)->ArgName("columns")->Arg(16)->Arg(64)->Arg(1024);

void prune_and_compact_columns(benchmark::State& state) {
  const std::int64_t columns = state.range(0);
  const auto rows = static_cast<std::int64_t>(kValues) / columns;
  const std::vector<float> x = lognormal_values(kValues);
  std::vector<float> values(kValues + kernels::kCompactSlack);
  std::vector<std::int32_t> offsets(values.size());
  std::vector<std::int32_t> row_offsets(static_cast<std::size_t>(rows));
  std::vector<std::int64_t> starts(static_cast<std::size_t>(columns) + 1);
  const std::int64_t stride = rows + static_cast<std::int64_t>(kernels::kCompactSlack);
  std::vector<float> room_values(static_cast<std::size_t>(columns * stride));
  std::vector<std::int32_t> room_offsets(room_values.size());
  std::vector<std::int64_t> ends(starts.size());
  const kernels::ColumnLists lists{.first_column = 0,
                                   .num_columns = columns,
                                   .row_offsets = row_offsets.data(),
                                   .many = false,
                                   .room = {.stride = stride,
                                            .values = room_values.data(),
                                            .offsets = room_offsets.data(),
                                            .ends = ends.data()},
                                   .values = values.data(),
                                   .offsets = offsets.data(),
                                   .starts = starts.data()};
  const kernels::LoopTreatment treatment = pruning();
  for (auto _ : state)
    kernels::compact_columns<float>(treatment, {x.data(), rows, columns, 0}, lists);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kValues));
}
BENCHMARK(prune_and_compact_columns)->ArgName("columns")->Arg(16)->Arg(64)->Arg(256);

}  // namespace
}  // namespace slimgrad
