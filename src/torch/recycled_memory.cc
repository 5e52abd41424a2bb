#include "torch/recycled_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

namespace slimgrad::torch_ops {
namespace {

class RecyclingAllocator final : public c10::Allocator {
 public:
  // kSame: what is kept serves results of its own size. kLarger: it serves smaller ones, too, and
  // where nothing is large enough all of it goes before more is taken: idle beside the largest
  // tensor of a pass it would only add to the peak.
  enum class Fit { kSame, kLarger };
  RecyclingAllocator(std::size_t most_cached, Fit fit) : most_cached_(most_cached), fit_(fit) {}

  c10::DataPtr allocate(std::size_t num_bytes) override {
    if (num_bytes < kLeastKept) return c10::GetCPUAllocator()->allocate(num_bytes);
    auto* const memory = new Memory(take(num_bytes));
    return {memory->pointer.get(), memory, &give_back, at::kCPU};
  }

  std::size_t cached_bytes() {
    const std::scoped_lock lock(mutex_);
    return cached_bytes_;
  }

  std::size_t release() {
    std::list<Memory> dropped;  // and freed when the lock is gone
    const std::scoped_lock lock(mutex_);
    dropped.swap(cached_);
    return std::exchange(cached_bytes_, 0);
  }

  void copy_data(void* to, const void* from, std::size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }

 private:
  struct Memory {
    c10::DataPtr pointer;
    std::size_t num_bytes;
    RecyclingAllocator* owner;
  };

  Memory take(std::size_t num_bytes) {
    std::list<Memory> dropped;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = find(num_bytes);
      if (found != cached_.end()) {
        Memory memory = std::move(*found);
        cached_.erase(found);
        cached_bytes_ -= memory.num_bytes;
        return memory;
      }
      if (fit_ == Fit::kLarger) {
        dropped.swap(cached_);
        cached_bytes_ = 0;
      }
    }
    dropped.clear();  // Before more is taken, and without the lock.
    return {c10::GetCPUAllocator()->allocate(num_bytes), num_bytes, this};
  }

  // The smallest that is large enough, of these the one used last. REQUIRES: the lock.
  std::list<Memory>::iterator find(std::size_t num_bytes) {
    auto best = cached_.end();
    for (auto it = cached_.begin(); it != cached_.end(); ++it) {
      if (it->num_bytes == num_bytes) return it;
      if (fit_ == Fit::kLarger && it->num_bytes > num_bytes &&
          (best == cached_.end() || it->num_bytes < best->num_bytes))
        best = it;
    }
    return best;
  }

  static void give_back(void* context) {
    auto* const memory = static_cast<Memory*>(context);
    memory->owner->keep(std::move(*memory));
    delete memory;
  }

  void keep(Memory memory) {
    std::list<Memory> dropped;  // and freed when the lock is gone
    const std::scoped_lock lock(mutex_);
    cached_bytes_ += memory.num_bytes;
    cached_.push_front(std::move(memory));
    while (cached_bytes_ > most_cached_) {
      cached_bytes_ -= cached_.back().num_bytes;
      dropped.splice(dropped.end(), cached_, std::prev(cached_.end()));
    }
  }

  const std::size_t most_cached_;
  const Fit fit_;
  std::mutex mutex_;
  std::list<Memory> cached_;  // used last first
  std::size_t cached_bytes_ = 0;
};

// Never destroyed: tensors may outlive everything static.
RecyclingAllocator& of_gradients() {
  static auto* const allocator = new RecyclingAllocator(kMostKept, RecyclingAllocator::Fit::kSame);
  return *allocator;
}
RecyclingAllocator& of_unpacked() {
  static auto* const allocator =
      new RecyclingAllocator(kMostUnpackedCached, RecyclingAllocator::Fit::kLarger);
  return *allocator;
}

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

}  // namespace

at::Tensor recycled_empty(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format) {
  return at::Tensor(at::detail::empty_generic(sizes, &of_gradients(), kCpu, type, format));
}

at::Tensor recycled_empty_unpacked(at::IntArrayRef sizes, at::IntArrayRef strides,
                                   at::ScalarType type) {
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &of_unpacked(), kCpu, type));
}

at::Tensor recycled_empty_like(const at::Tensor& like) {
  if (!like.is_non_overlapping_and_dense()) return at::empty_like(like);
  return at::Tensor(at::detail::empty_strided_generic(like.sizes(), like.strides(), &of_gradients(),
                                                      kCpu, like.scalar_type()));
}

std::size_t recycled_bytes() {
  return of_gradients().cached_bytes() + of_unpacked().cached_bytes();
}
std::size_t release_recycled() { return of_gradients().release() + of_unpacked().release(); }

}  // namespace slimgrad::torch_ops
