#include <algorithm>
#include <cstring>

#include "arrays/kept/kept.h"
#include "base/check.h"
#include "kernels/coding/nonzeros.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

constexpr std::size_t kMaskBytes = kExactValues / 8;  // of a task

constexpr std::size_t num_tasks(std::size_t num_values) {
  return (num_values + kExactValues - 1) / kExactValues;
}
constexpr std::size_t count_of(std::size_t task, std::size_t num_values) {
  return std::min(kExactValues, num_values - task * kExactValues);
}
constexpr std::size_t up_to_16(std::size_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

template <typename Word>
std::size_t count_nonzeros(const Word* words, std::size_t num_words) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < num_words; ++i) count += words[i] != 0 ? 1 : 0;
  return count;
}

}  // namespace

ExactLayout exact_layout(const void* values, std::size_t num_values, std::size_t width,
                         const Parallel& parallel) {
  const std::size_t tasks = num_tasks(num_values);
  ExactLayout layout{.begins = std::vector<std::uint64_t>(tasks + 1),
                     .masks = (tasks + 1) * sizeof(std::uint64_t)};
  parallel(static_cast<std::int64_t>(tasks), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    const std::size_t first = task * kExactValues, count = count_of(task, num_values);
    const std::size_t survivors =
        width == 2 ? count_nonzeros(static_cast<const std::uint16_t*>(values) + first, count)
                   : count_nonzeros(static_cast<const std::uint32_t*>(values) + first, count);
    layout.begins[task + 1] = up_to_16(survivors * width + kernels::kNonzerosSlack);
  });
  layout.begins[0] = up_to_16(layout.masks + (num_values + 7) / 8);
  for (std::size_t task = 0; task < tasks; ++task) layout.begins[task + 1] += layout.begins[task];
  return layout;
}

void keep_exactly(const void* values, std::size_t num_values, std::size_t width,
                  const ExactLayout& layout, const Parallel& parallel,
                  std::span<std::uint8_t> bytes) {
  kernels::obey_environment();
  std::memcpy(bytes.data(), layout.begins.data(), layout.masks);
  parallel(static_cast<std::int64_t>(num_tasks(num_values)), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    kernels::split_nonzeros(static_cast<const std::uint8_t*>(values) + task * kExactValues * width,
                            count_of(task, num_values), width,
                            bytes.data() + layout.masks + task * kMaskBytes,
                            bytes.data() + layout.begins[task]);
  });
}

void restore_exactly(std::span<const std::uint8_t> bytes, std::size_t width,
                     const Parallel& parallel, void* values, std::size_t num_values) {
  kernels::obey_environment();
  const std::size_t tasks = num_tasks(num_values);
  std::vector<std::uint64_t> begins(tasks + 1);
  const std::size_t masks = begins.size() * sizeof(std::uint64_t);
  const std::size_t least = up_to_16(masks + (num_values + 7) / 8);
  check(bytes.size() >= least, "restore_exact", "the bytes that keep_exact gave for so many values",
        bytes.size(), " bytes");
  std::memcpy(begins.data(), bytes.data(), masks);
  check(std::is_sorted(begins.begin(), begins.end()) && begins.front() == least &&
            begins.back() == bytes.size(),
        "restore_exact", "the bytes that keep_exact gave for so many values", bytes.size(),
        " bytes that are not");
  parallel(static_cast<std::int64_t>(tasks), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    kernels::merge_nonzeros(bytes.data() + masks + task * kMaskBytes, bytes.data() + begins[task],
                            width, static_cast<std::uint8_t*>(values) + task * kExactValues * width,
                            count_of(task, num_values));
  });
}

}  // namespace slimgrad
