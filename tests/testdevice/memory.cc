#include "memory.h"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace testdevice {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{16} << 30;  // of addresses; pages come when used
constexpr std::size_t kAlignment = 512;                     // as torch's CUDA allocator has it

class Arena {
 public:
  Arena()
      : base_(static_cast<char*>(mmap(nullptr, kArenaBytes, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    free_[0] = kArenaBytes;
  }

  void* allocate(std::size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    num_bytes = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (auto place = free_.begin(); place != free_.end(); ++place) {
      const auto [at, size] = *place;
      if (size < num_bytes) continue;
      free_.erase(place);
      if (size > num_bytes) free_[at + num_bytes] = size - num_bytes;
      used_[at] = num_bytes;
      return base_ + at;
    }
    throw std::bad_alloc();
  }

  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto at = static_cast<std::size_t>(static_cast<char*>(memory) - base_);
    std::size_t size = used_.at(at);
    used_.erase(at);
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == at + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == at)
      std::prev(next)->second += size;
    else
      free_[at] = size;
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (num_open_++ == 0) mprotect(base_, kArenaBytes, PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--num_open_ == 0) mprotect(base_, kArenaBytes, PROT_NONE);
  }

 private:
  char* base_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_, used_;  // sizes by offset
  int num_open_ = 0;
};

Arena& arena() {
  static Arena& arena = *new Arena;  // Tensors may be freed after all static objects.
  return arena;
}

}  // namespace

void* allocate(std::size_t num_bytes) { return arena().allocate(num_bytes); }
void release(void* memory) { arena().release(memory); }
Opened::Opened() { arena().open(); }
Opened::~Opened() { arena().close(); }

}  // namespace testdevice
