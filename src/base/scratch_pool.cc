#include "base/scratch_pool.h"

#include <algorithm>
#include <utility>

namespace slimgrad {

std::unique_ptr<ScratchPool::Memory> ScratchPool::take(const void* kind) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(cached_, kind, &Entry::kind);
  if (found == cached_.end()) return nullptr;
  cached_bytes_ -= found->bytes;
  std::unique_ptr<Memory> memory = std::move(found->memory);
  cached_.erase(found);
  return memory;
}

void ScratchPool::give_back(const void* kind, std::unique_ptr<Memory> memory, std::size_t bytes) {
  if (bytes > kMostScratchCached) return;  // It would drive out all others.
  std::list<Entry> dropped;                // and freed when the lock is gone
  const std::scoped_lock lock(mutex_);
  cached_bytes_ += bytes;
  cached_.push_front({kind, std::move(memory), bytes});
  while (cached_bytes_ > kMostScratchCached) {
    cached_bytes_ -= cached_.back().bytes;
    dropped.splice(dropped.end(), cached_, std::prev(cached_.end()));
  }
}

std::size_t ScratchPool::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return cached_bytes_;
}

std::size_t ScratchPool::release() {
  std::list<Entry> dropped;
  const std::scoped_lock lock(mutex_);
  dropped.swap(cached_);
  return std::exchange(cached_bytes_, 0);
}

ScratchPool& scratch_pool() {
  static auto* const pool = new ScratchPool;
  return *pool;
}

}  // namespace slimgrad
