// What autograd saves for backward in a C++ program, packed until backward needs it.
//
// SavedTensors packs everything that autograd saves:
//
//     slimgrad::SavedTensors saved_tensors({.bits = 4}, seed);
//     torch::Tensor loss;
//     {
//       const slimgrad::SavedTensorsGuard guard(saved_tensors);  // for this thread, until its end
//       loss = torch::mse_loss(model->forward(x), y);
//     }
//     loss.backward();
//     const auto [plain, saved] = saved_tensors.bytes();
//
// SavedTensor is one packed tensor, for autograd nodes of your own: a node that needs its input in
// backward holds a SavedTensor instead of a SavedVariable.
//
//     saved_ = slimgrad::SavedTensor(x, {.bits = 4}, seed, calls++);       // in forward
//     const at::Tensor x = saved_.unpack();                                // in backward
//
// Same rules and same bits as slimgrad.saved_tensors() in Python: docs/saved.md says what is
// packed, how, what is left alone, what it costs, and has every bit of the format.
//
// A SavedTensor is immutable, and any number of threads may unpack it. Several threads may have
// guards of one SavedTensors.
//
// Surprises. Compiled parts and checkpointing are supported in Python only. In a process whose
// autograd engine is Python's a guard throws: slimgrad.saved_tensors() is for those.
#ifndef SLIMGRAD_SAVED_TENSORS_H_
#define SLIMGRAD_SAVED_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace slimgrad {

struct SavedOptions {
  int bits = 8;   // 8, 4 or 2; 0: exactly, without its zeros
  int group = 0;  // values that share a scale: 16 to 512, a power of two; 0: by the bits
  bool is_stochastic = true;  // unbiased; otherwise to the nearest level. Neither with 0 bits
};

class SavedTensor {
 public:
  // Packs a tensor on the CPU of float32, bfloat16 or float16 and any layout. One that holds NaN or
  // Inf, and one that cannot be stored exactly in fewer bytes, is held as it is. `number` selects
  // the draws among all that the seed makes. Throws InvalidArgument.
  SavedTensor(const at::Tensor& x, const SavedOptions& options, std::uint64_t seed,
              std::uint64_t number = 0);

  // With the sizes, type and, if it was dense, the strides of the original. Throws c10::Error if
  // that was changed in place since, as torch does for what it saves.
  at::Tensor unpack() const;

  // The bytes that it holds in memory.
  std::size_t bytes() const { return packed_.nbytes(); }
  // Whether the tensor itself is held, because packing it was no use.
  bool is_plain() const { return way_ == Way::kPlain; }
  // Whether what comes back differs from what was given.
  bool is_rounded() const {
    return way_ == Way::kRounded || (way_ == Way::kCast && at::isFloatingType(type_));
  }

 private:
  friend class SavedTensors;
  enum class Way { kPlain, kRounded, kExact, kCast };
  // `packed` stands for x.
  SavedTensor(const at::Tensor& x, at::Tensor packed, Way way);

  at::Tensor packed_;
  Way way_ = Way::kPlain;
  SavedOptions options_;
  std::vector<std::int64_t> sizes_, strides_;
  at::ScalarType type_ = at::kFloat;
  c10::VariableVersion version_;
  std::uint32_t saved_version_ = 0;
};

namespace torch_ops {
enum class Saving;
}

// Packs what is saved under its guards, each piece of memory once. With guards in several threads
// bytes() counts what all of them saved since the last guard began.
class SavedTensors {
 public:
  // seed: without one, from torch's generator. min_elements: smaller tensors are held as they are.
  // stream: which of the seed's draws; ranks of a distributed job take their own, so that errors
  // average out. Throws InvalidArgument.
  explicit SavedTensors(const SavedOptions& options,
                        std::optional<std::uint64_t> seed = std::nullopt,
                        std::int64_t min_elements = 4096, std::uint64_t stream = 0);

  // The seed, and the number of tensors that were rounded: all of its state. A program that resumes
  // makes the object with that seed and sets the number. Throws InvalidArgument for more than
  // kMostCalls (gate.h), which no run reaches.
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
    std::vector<std::int64_t> shape;  // number of values if dense, else sizes and strides
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

// While it lives, what this thread saves goes through `saved_tensors`; with nested guards the
// innermost counts. Backward may run later, also after `saved_tensors` was destroyed. In a process
// whose autograd engine is Python's it throws InvalidArgument: slimgrad.saved_tensors() is for
// those.
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
