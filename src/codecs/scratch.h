// Memory that is asked for again and again: it grows, is not cleared, and is kept for the next
// time. Fresh memory costs several times what a pass over warm memory costs.
#ifndef SLIMGRAD_CODECS_SCRATCH_H_
#define SLIMGRAD_CODECS_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <new>

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

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// This thread's T, kept from one call to the next. To be asked for once and not in a loop: in a
// shared library every use of a thread-local variable by its name is a function call.
template <typename T>
T& per_thread() {
  static thread_local T value;
  return value;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_SCRATCH_H_
