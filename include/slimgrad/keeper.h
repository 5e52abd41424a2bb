// Everything that autograd saves for backward in a C++ program, kept small until then.
//
//     slimgrad::Keeper keeper({.bits = 4}, seed);
//     torch::Tensor loss;
//     {
//       const slimgrad::KeepGuard guard(keeper);  // for this thread, until its end
//       loss = torch::mse_loss(model->forward(x), y);
//     }
//     loss.backward();
//     std::cout << keeper.bytes().kept << " of " << keeper.bytes().plain << " bytes\n";
//
// Same rules and same bits as slimgrad.keep() in Python: docs/kept.md says what is packed, how, and
// what is left alone. Compiled parts and checkpointing are Python's; here there are none.
#ifndef SLIMGRAD_KEEPER_H_
#define SLIMGRAD_KEEPER_H_

#include <ATen/core/Tensor.h>
#include <slimgrad/kept.h>

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
// of one keeper; bytes() is then what all of them kept since the last guard began.
class Keeper {
 public:
  // seed: without one, from torch's generator. min_elements: smaller tensors are kept as they are.
  // stream: which of the seed's draws; ranks of a distributed job take their own, so that errors
  // average out. Throws InvalidArgument.
  explicit Keeper(const KeepOptions& options, std::optional<std::uint64_t> seed = std::nullopt,
                  std::int64_t min_elements = 4096, std::uint64_t stream = 0);

  // The seed, and how many tensors were rounded: all of its state. A program that resumes makes the
  // object with that seed and sets the number. Throws InvalidArgument for more than kMostCalls
  // (gate.h), which nobody comes to.
  std::uint64_t seed() const { return seed_; }
  std::uint64_t number() const;
  void set_number(std::uint64_t number);

  // What autograd would have kept, and kept, under the last guard. Parameters and what is computed
  // from them alone live anyway, and are not counted.
  struct Bytes {
    std::size_t plain = 0, kept = 0;
  };
  Bytes bytes() const;

  // What autograd's hooks call: x as it will be held. Throws c10::Error.
  std::shared_ptr<const KeptTensor> keep(const at::Tensor& x);

 private:
  friend class KeepGuard;
  void begin_pass();
  KeptTensor packed(const at::Tensor& x, torch_ops::Saving saving);

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
    std::weak_ptr<const KeptTensor> kept;
  };

  const KeepOptions options_;
  const std::uint64_t seed_, stream_;
  const std::int64_t min_elements_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t number_ = 0;
  Bytes bytes_;
  std::map<Piece, Known> known_;
};

// While it lives, what this thread saves goes through `keeper`; of nested guards the innermost.
// Backward may run later, and after the keeper is gone. In a process whose autograd engine is
// Python's it throws InvalidArgument: slimgrad.keep() is for those.
class KeepGuard {
 public:
  explicit KeepGuard(Keeper& keeper);
  ~KeepGuard();
  KeepGuard(const KeepGuard&) = delete;
  KeepGuard& operator=(const KeepGuard&) = delete;

 private:
  Keeper* const before_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_KEEPER_H_
