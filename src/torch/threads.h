// Work on torch's threads, in two shapes. Results never depend on which thread does what.
#ifndef SLIMGRAD_TORCH_THREADS_H_
#define SLIMGRAD_TORCH_THREADS_H_

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <slimgrad/apply.h>

namespace slimgrad::torch_ops {

// Ranges: calls run(first, last) for ranges of at least `grain` that together cover 0 to count - 1,
// one for each thread.
template <typename Run>
void for_ranges(std::size_t count, std::size_t grain, const Run& run) {
  at::parallel_for(0, static_cast<std::int64_t>(count), static_cast<std::int64_t>(grain),
                   [&](std::int64_t first, std::int64_t last) {
                     run(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
                   });
}

// The same over the values of an array: calls run(first, num_values) for ranges that begin at
// multiples of `unit`. Fewer than 32 Ki values are not worth waking a second thread.
template <std::size_t unit, typename Run>
void for_values(std::size_t num_values, const Run& run) {
  constexpr std::size_t kGrain = 32768;
  static_assert(kGrain % unit == 0);
  for_ranges((num_values + unit - 1) / unit, kGrain / unit,
             [&](std::size_t first, std::size_t last) {
               run(first * unit, std::min(last * unit, num_values) - first * unit);
             });
}

// The same with ranges that the apply kernels accept: they begin at multiples of kPieceElements.
template <typename Run>
void for_pieces(std::size_t num_values, const Run& run) {
  for_values<16 * kPieceElements>(num_values, run);
}

// Tasks: a thread that is free takes the next, as equal shares would wait for the slower core.
inline void for_tasks(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next = 0;
  const std::int64_t workers = std::min<std::int64_t>(count, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t worker = first; worker < last; ++worker)
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
  });
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_THREADS_H_
