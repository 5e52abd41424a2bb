// The blocks of a payload on several threads.
#ifndef SLIMGRAD_PROGRAM_BLOCK_THREADS_H_
#define SLIMGRAD_PROGRAM_BLOCK_THREADS_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>

#include "program/progress.h"

namespace slimgrad::program {

int default_num_threads();  // as many as the machine runs at once
void declare_threads(CLI::App& app, int& num_threads);

// Calls work(first, last) for consecutive ranges that make up 0 .. num_blocks, on num_threads
// threads, and shows the progress. The first exception of any thread is thrown on, after all have
// ended. REQUIRES: calls for disjoint ranges may be concurrent.
void for_block_ranges(std::size_t num_blocks, int num_threads, Progress& progress,
                      const std::function<void(std::size_t, std::size_t)>& work);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_BLOCK_THREADS_H_
