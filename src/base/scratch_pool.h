// What sparse products keep from one to the next: one pool for all threads, so that it can be
// bounded and given back as a whole.
#ifndef SLIMGRAD_BASE_SCRATCH_POOL_H_
#define SLIMGRAD_BASE_SCRATCH_POOL_H_

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

namespace slimgrad {

// The most unused bytes that are kept; the least recently used go first.
inline constexpr std::size_t kMostScratchCached = std::size_t{64} << 20;

class ScratchPool {
 public:
  struct Memory {
    virtual ~Memory() = default;
  };

  // Nothing if none of this kind is kept.
  std::unique_ptr<Memory> take(const void* kind);
  void give_back(const void* kind, std::unique_ptr<Memory> memory, std::size_t bytes);

  std::size_t cached_bytes() const;
  // Frees all unused memory. Returns how many bytes that was.
  std::size_t release();

 private:
  struct Entry {
    const void* kind;
    std::unique_ptr<Memory> memory;
    std::size_t bytes;
  };
  mutable std::mutex mutex_;
  std::list<Entry> cached_;  // used last first
  std::size_t cached_bytes_ = 0;
};

// Never destroyed: threads may outlive everything static.
ScratchPool& scratch_pool();

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_SCRATCH_POOL_H_
