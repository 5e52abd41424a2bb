// Memory that is used again: fresh memory costs more than coding.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_BUFFERS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_BUFFERS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace slimgrad::exchange {

// Bytes and sums for one group. Only the part of a buffer that was written takes memory. Threads
// may share it.
class Buffers {
 public:
  // At least `size` elements, whatever they hold.
  at::Tensor take(std::int64_t size, at::ScalarType type = at::kByte) {
    const std::int64_t rounded = std::max<std::int64_t>(1, (size + kStep - 1) / kStep) * kStep;
    {
      const std::lock_guard lock(mutex_);
      const auto found = cached_.find({rounded, type});
      if (found != cached_.end() && !found->second.empty()) {
        at::Tensor buffer = std::move(found->second.back());
        found->second.pop_back();
        cached_bytes_ -= static_cast<std::int64_t>(buffer.nbytes());
        return buffer;
      }
    }
    return at::empty({rounded}, type);
  }

  void give_back(at::Tensor buffer) {
    const std::lock_guard lock(mutex_);
    const auto bytes = static_cast<std::int64_t>(buffer.nbytes());
    if (cached_bytes_ + bytes > kMostCached) return;
    cached_bytes_ += bytes;
    cached_[{buffer.numel(), buffer.scalar_type()}].push_back(std::move(buffer));
  }

 private:
  // Buffers are handed out in multiples of this, so that frames of nearly the same size share them.
  static constexpr std::int64_t kStep = 1 << 20;
  // Bytes of address space: about a seventh of a buffer with a coded frame is ever written.
  static constexpr std::int64_t kMostCached = 1 << 30;

  std::mutex mutex_;
  std::map<std::pair<std::int64_t, at::ScalarType>, std::vector<at::Tensor>> cached_;
  std::int64_t cached_bytes_ = 0;
};

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_BUFFERS_H_
