#include "program/block_threads.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace slimgrad::program {
namespace {

constexpr std::size_t kRange = 16;  // blocks: a coder's buffers are made once for each range

}  // namespace

int default_num_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void declare_threads(Flags& flags, int& num_threads) {
  flags.option("--threads", num_threads, "Number of threads; the output does not depend on it")
      .range(1, 1024)
      .value_name("");
}

void for_block_ranges(std::size_t num_blocks, int num_threads, Progress& progress,
                      const std::function<void(std::size_t, std::size_t)>& work) {
  std::mutex mutex;
  std::size_t next = 0, done = 0;
  std::exception_ptr error;
  const auto run = [&] {
    std::unique_lock lock(mutex);
    while (next < num_blocks && !error) {
      const std::size_t first = next, last = std::min(num_blocks, first + kRange);
      next = last;
      lock.unlock();
      std::exception_ptr failed;
      try {
        work(first, last);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      if (failed && !error) error = failed;
      done += last - first;
      progress.done_of(done, num_blocks);
    }
  };
  std::vector<std::jthread> helpers;
  const std::size_t ranges = (num_blocks + kRange - 1) / kRange;
  for (std::size_t t = 1; t < std::min<std::size_t>(ranges, num_threads); ++t)
    helpers.emplace_back(run);
  run();
  helpers.clear();  // waits for them
  if (error) std::rethrow_exception(error);
}

}  // namespace slimgrad::program
