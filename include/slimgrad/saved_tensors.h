// Everything that autograd saves for backward in a C++ program, kept small until then.
//
//     slimgrad::SavedTensors saved_tensors({.bits = 4}, seed);
//     torch::Tensor loss;
//     {
//       const slimgrad::SavedTensorsGuard guard(saved_tensors);  // for this thread, until its end
//       loss = torch::mse_loss(model->forward(x), y);
//     }
//     loss.backward();
//     std::cout << saved_tensors.bytes().saved << " of " << saved_tensors.bytes().plain << "
//     bytes\n";
//
// Same rules and same bits as slimgrad.saved_tensors() in Python: docs/saved.md says what is
// packed, how, and what is left alone. Compiled parts and checkpointing are Python's; here there
// are none.
#ifndef SLIMGRAD_SAVED_TENSORS_H_
#define SLIMGRAD_SAVED_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <slimgrad/saved_tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace slimgrad {
namespace torch_ops {
enum class Saving;
}

// Packs what is saved under its guards, each piece of memory once. Several threads may have guards
// of one saved_tensors; bytes() is then what all of them kept since the last guard began.
class SavedTensors {
 public:
  // seed: without one, from torch's generator. min_elements: smaller tensors are kept as they are.
  // stream: which of the seed's draws; ranks of a distributed job take their own, so that errors
  // average out. Throws InvalidArgument.
  explicit SavedTensors(const SavedOptions& options,
                        std::optional<std::uint64_t> seed = std::nullopt,
                        std::int64_t min_elements = 4096, std::uint64_t stream = 0);

  // The seed, and how many tensors were rounded: all of its state. A program that resumes makes the
  // object with that seed and sets the number. Throws InvalidArgument for more than kMostCalls
  // (gate.h), which nobody comes to.
  std::uint64_t seed() const { return seed_; }
  std::uint64_t number() const;
  void set_number(std::uint64_t number);

  // What autograd would have saved without packing, and what was saved, under the last guard.
  // Parameters and what is computed from them alone live anyway, and are not counted.
  struct Bytes {
    std::size_t plain = 0, saved = 0;
  };
  Bytes bytes() const;

  // What autograd's hooks call: x as it will be held. Throws c10::Error.
  std::shared_ptr<const SavedTensor> keep(const at::Tensor& x);

 private:
  friend class SavedTensorsGuard;
  void begin_pass();
  SavedTensor packed(const at::Tensor& x, torch_ops::Saving saving);

  // A piece of memory, as no other can be while a weak reference to its storage is held.
  struct Piece {
    const c10::StorageImpl* storage;
    std::int64_t offset;
    std::vector<std::int64_t> shape;  // how many, if dense; otherwise sizes and strides
    at::ScalarType type;
    std::uint32_t version;
    auto operator<=>(const Piece&) const = default;
  };
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::weak_ptr<const SavedTensor> saved;
  };

  const SavedOptions options_;
  const std::uint64_t seed_, stream_;
  const std::int64_t min_elements_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t number_ = 0;
  Bytes bytes_;
  std::map<Piece, Known> known_;
};

// While it lives, what this thread saves goes through `saved_tensors`; of nested guards the
// innermost. Backward may run later, and after the saved_tensors is gone. In a process whose
// autograd engine is Python's it throws InvalidArgument: slimgrad.saved_tensors() is for those.
class SavedTensorsGuard {
 public:
  explicit SavedTensorsGuard(SavedTensors& saved_tensors);
  ~SavedTensorsGuard();
  SavedTensorsGuard(const SavedTensorsGuard&) = delete;
  SavedTensorsGuard& operator=(const SavedTensorsGuard&) = delete;

 private:
  SavedTensors* const before_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_SAVED_TENSORS_H_
