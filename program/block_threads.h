// The blocks of a payload on several threads.
#ifndef SLIMGRAD_PROGRAM_BLOCK_THREADS_H_
#define SLIMGRAD_PROGRAM_BLOCK_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "program/flags.h"
#include "program/progress.h"

namespace slimgrad::program {

int default_num_threads();  // as many as the machine runs at once
void declare_threads(Flags& flags, int& num_threads);

// Calls work(first, last) for consecutive ranges that make up 0 .. num_blocks, on num_threads
// threads, and shows the progress. The first exception of any thread is thrown on, after all have
// ended. REQUIRES: calls for disjoint ranges may be concurrent.
void for_block_ranges(std::size_t num_blocks, int num_threads, Progress& progress,
                      const std::function<void(std::size_t, std::size_t)>& work);

// About the bytes that belong to these blocks of all that make up `bytes`.
inline std::span<const std::uint8_t> share_of(std::span<const std::uint8_t> bytes,
                                              std::size_t first, std::size_t last,
                                              std::size_t num_blocks) {
  const std::size_t begin = bytes.size() / num_blocks * first;
  return bytes.subspan(begin, bytes.size() / num_blocks * last - begin);
}

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_BLOCK_THREADS_H_
