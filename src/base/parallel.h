// Threads as the core sees them: the caller supplies them.
#ifndef SLIMGRAD_BASE_PARALLEL_H_
#define SLIMGRAD_BASE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace slimgrad {

// parallel(n, task): task(0) ... task(n - 1), in any order, and returns when all are done.
using Parallel = std::function<void(std::int64_t, const std::function<void(std::int64_t)>&)>;

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_PARALLEL_H_
