// Memory that is asked for again and again: it grows, is not cleared, and is kept for the next
// time. Fresh memory costs several times what a pass over warm memory costs.
#ifndef SLIMGRAD_BASE_SCRATCH_H_
#define SLIMGRAD_BASE_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "base/scratch_pool.h"

namespace slimgrad {

template <typename T>
class Scratch {
 public:
  static constexpr std::size_t kAlignment = 64;

  // At least `size` elements, whatever they hold; earlier pointers may become invalid.
  T* reserve(std::size_t size) {
    if (size > size_) {
      data_.reset();  // First, so that the two never exist together.
      size_ = 0;
      data_.reset(static_cast<T*>(::operator new (size * sizeof(T), std::align_val_t{kAlignment})));
      size_ = size;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// A T for as long as this lives, warm if one was used before. It has no other user, and goes back
// to the pool, from whichever thread. T has bytes(), what it holds. Taking one is a lock: not in a
// loop.
template <typename T>
class Pooled {
 public:
  Pooled() : memory_(scratch_pool().take(kind())) {
    if (!memory_) memory_ = std::make_unique<Kept>();
  }
  ~Pooled() {
    const std::size_t bytes = (*this)->bytes();
    scratch_pool().give_back(kind(), std::move(memory_), bytes);
  }
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;

  T& operator*() const { return static_cast<Kept&>(*memory_).value; }
  T* operator->() const { return &**this; }

 private:
  struct Kept : ScratchPool::Memory {
    T value;
  };
  // An address that no other T has.
  static const void* kind() {
    static char kind;
    return &kind;
  }

  std::unique_ptr<ScratchPool::Memory> memory_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_SCRATCH_H_
