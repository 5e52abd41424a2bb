// What sparse products keep between calls, and the call that gives it back.
#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <slimgrad/sparse_layers.h>

#include "base/scratch_pool.h"
#include "torch/recycled_memory.h"

namespace slimgrad {

std::size_t cached_memory() { return scratch_pool().cached_bytes() + torch_ops::recycled_bytes(); }

std::size_t empty_cache() {
  const std::size_t workspace = scratch_pool().release();
  const std::size_t recycled = torch_ops::release_recycled();
#ifdef __GLIBC__
  malloc_trim(0);  // What lies below memory in use it would keep.
#endif
  return workspace + recycled;
}

}  // namespace slimgrad

namespace slimgrad::torch_ops {

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("cached_memory", [] { return static_cast<std::int64_t>(slimgrad::cached_memory()); });
  m.impl("empty_cache", [] { return static_cast<std::int64_t>(slimgrad::empty_cache()); });
}

}  // namespace slimgrad::torch_ops
