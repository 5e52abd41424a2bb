#include "arrays/saved/saved.h"

#include <slimgrad/seed.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/saved/saved.h"

namespace slimgrad {
namespace {

constexpr std::size_t kTaskValues = 64 * saved::kBlockValues;

std::int64_t num_tasks(std::size_t num_values) {
  return static_cast<std::int64_t>((num_values + kTaskValues - 1) / kTaskValues);
}

// The part of the words that belongs to some of the values.
struct Task {
  std::size_t first, count, first_code, first_scale;
  Task(std::size_t first, std::size_t count, std::size_t num_values, const saved::Format& format)
      : first(first),
        count(count),
        first_code(saved::code_words(first, format.bits)),
        first_scale(saved::code_words(num_values, format.bits) + first / format.group) {}
};

}  // namespace

saved::Format saved_format(std::string_view op, std::int64_t bits, std::int64_t group,
                           std::string_view rounding) {
  check(saved::is_width(bits), op, "bits to be 8, 4 or 2", bits);
  if (group == 0) group = default_saved_group(bits);
  check(saved::is_group(group), op, "group to be 16, 32, 64, 128, 256 or 512", group);
  check(rounding == "stochastic" || rounding == "nearest", op,
        "rounding to be one of stochastic, nearest", rounding);
  return {.bits = static_cast<int>(bits),
          .group = static_cast<std::size_t>(group),
          .is_stochastic = rounding == "stochastic"};
}

template <typename T>
std::size_t pack_saved(std::span<const T> values, const saved::Format& format, std::uint64_t seed,
                       std::uint64_t number, const Parallel& parallel,
                       std::span<std::uint32_t> words) {
  kernels::obey_environment();
  const RandomStream random(derive_seed(seed, {number}), Stream::kSaved);
  std::atomic<std::size_t> num_bad = 0;
  parallel(num_tasks(values.size()), [&](std::int64_t index) {
    const std::size_t begin = static_cast<std::size_t>(index) * kTaskValues;
    const Task task(begin, std::min(kTaskValues, values.size() - begin), values.size(), format);
    num_bad +=
        kernels::pack_saved(values.subspan(task.first, task.count), format, random, task.first,
                            words.data() + task.first_code, words.data() + task.first_scale);
  });
  words.back() = static_cast<std::uint32_t>(std::min<std::size_t>(num_bad, UINT32_MAX));
  return num_bad;
}

template <typename T>
void unpack_saved(std::span<const std::uint32_t> words, const saved::Format& format,
                  const Parallel& parallel, std::span<T> values) {
  kernels::obey_environment();
  parallel(num_tasks(values.size()), [&](std::int64_t index) {
    const std::size_t begin = static_cast<std::size_t>(index) * kTaskValues;
    const Task task(begin, std::min(kTaskValues, values.size() - begin), values.size(), format);
    kernels::unpack_saved(words.data() + task.first_code, words.data() + task.first_scale, format,
                          values.subspan(task.first, task.count));
  });
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template std::size_t pack_saved<T>(std::span<const T>, const saved::Format&, std::uint64_t,   \
                                     std::uint64_t, const Parallel&, std::span<std::uint32_t>); \
  template void unpack_saved<T>(std::span<const std::uint32_t>, const saved::Format&,           \
                                const Parallel&, std::span<T>);
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad
