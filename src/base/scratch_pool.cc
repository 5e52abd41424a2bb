#include "base/scratch_pool.h"

#include <algorithm>
#include <utility>

namespace slimgrad {

std::unique_ptr<ScratchPool::Memory> ScratchPool::take(const void* kind) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(kept_, kind, &Entry::kind);
  if (found == kept_.end()) return nullptr;
  kept_bytes_ -= found->bytes;
  std::unique_ptr<Memory> memory = std::move(found->memory);
  kept_.erase(found);
  return memory;
}

void ScratchPool::give_back(const void* kind, std::unique_ptr<Memory> memory, std::size_t bytes) {
  if (bytes > kMostScratchKept) return;  // It would drive out all others.
  std::list<Entry> dropped;              // and freed when the lock is gone
  const std::scoped_lock lock(mutex_);
  kept_bytes_ += bytes;
  kept_.push_front({kind, std::move(memory), bytes});
  while (kept_bytes_ > kMostScratchKept) {
    kept_bytes_ -= kept_.back().bytes;
    dropped.splice(dropped.end(), kept_, std::prev(kept_.end()));
  }
}

std::size_t ScratchPool::kept_bytes() const {
  const std::scoped_lock lock(mutex_);
  return kept_bytes_;
}

std::size_t ScratchPool::release() {
  std::list<Entry> dropped;
  const std::scoped_lock lock(mutex_);
  dropped.swap(kept_);
  return std::exchange(kept_bytes_, 0);
}

ScratchPool& scratch_pool() {
  static auto* const pool = new ScratchPool;
  return *pool;
}

}  // namespace slimgrad
