// What autograd saves for backward, packed until backward needs it.
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
//     const auto [tensors, plain_bytes, bytes] = saved_tensors.tally().total();
//
// saved_bytes() measures what one forward pass saves, by operation.
//
// SavedTensor is one packed tensor, for autograd nodes of your own: a node that needs its input in
// backward holds a SavedTensor instead of a SavedVariable.
//
//     saved_ = slimgrad::SavedTensor(x, {.bits = 4}, seed, calls++);       // in forward
//     const at::Tensor x = saved_.unpack();                                // in backward
//
// slimgrad.saved_tensors() and compress(saved=) in Python are this class behind the hooks of
// Python: docs/saved.md says what is packed, how, what is left alone, what it costs, and has every
// bit of the format.
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
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slimgrad {

struct SavedOptions {
  int bits = 8;            // 8, 4 or 2; 0: exactly, without its zeros
  std::int64_t group = 0;  // values that share a scale: 16 to 512, a power of two; 0: by the bits
  bool is_stochastic = true;  // unbiased; otherwise to the nearest level. Neither with 0 bits
};

namespace runtime {
struct SavedWords;
struct SavedPass;
}  // namespace runtime

class SavedTensor {
 public:
  // Packs a tensor of float32, bfloat16 or float16 and any layout. On the CPU one that holds NaN or
  // Inf, and one that cannot be stored exactly in fewer bytes, is held as it is. On a device no one
  // waits for values: groups with NaN or Inf come back as NaN, and what is to be exact is held as
  // it is. `number` selects the draws among all that the seed makes. Throws InvalidArgument.
  SavedTensor(const at::Tensor& x, const SavedOptions& options, std::uint64_t seed,
              std::uint64_t number = 0);

  // With the sizes, type and, if it was dense, the strides of the original. Throws c10::Error if
  // that was changed in place since, as torch does for what it saves; and, for what SavedTensors
  // rounded, in a backward pass with create_graph.
  at::Tensor unpack() const;

  // The bytes that it holds in memory.
  std::size_t bytes() const;
  // Whether the tensor itself is held, because packing it was no use.
  bool is_plain() const;
  // Whether what comes back differs from what was given.
  bool is_rounded() const;

 private:
  friend class SavedTensors;
  SavedTensor() = default;
  SavedTensor(const at::Tensor& x, std::shared_ptr<const runtime::SavedWords> words,
              std::shared_ptr<runtime::SavedPass> pass);

  std::shared_ptr<const runtime::SavedWords> words_;  // shared by all that save these values
  std::shared_ptr<runtime::SavedPass> pass_;          // of SavedTensors: where its time is counted
  std::vector<std::int64_t> sizes_, strides_;         // of what is not plain
};

// What was saved since a guard was last made, each piece of memory once. Parameters and other
// leaves, their views and casts, and what is saved inside backward are not in it: they live anyway.
// The texts live as long as the program.
struct SavedTally {
  struct Count {
    std::int64_t tensors = 0;
    std::size_t plain_bytes = 0, bytes = 0;
    Count& operator+=(const Count& other);
  };
  std::map<std::string_view, Count> packed;  // by what they became: "4 bits", "exact", ...
  std::map<std::string_view, Count> left;    // by why they stayed as they are
  double packing_seconds = 0, unpacking_seconds = 0;

  static Count sum(const std::map<std::string_view, Count>& counts);
  Count total() const;  // packed and left
};

// Packs what is saved under its guards, each piece of memory once. With guards in several threads
// tally() counts what all of them saved since the last guard began.
class SavedTensors {
 public:
  // seed: without one, from torch's generator. min_elements: smaller tensors are held as they are.
  // stream: which of the seed's draws; ranks of a distributed job take their own, so that errors
  // average out. called: what errors name. Throws InvalidArgument.
  explicit SavedTensors(const SavedOptions& options,
                        std::optional<std::uint64_t> seed = std::nullopt,
                        std::int64_t min_elements = 4096, std::uint64_t stream = 0,
                        std::string called = "SavedTensors");
  ~SavedTensors();
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

  // All of its state: an int64 tensor of the seed, and of the number of tensors that were rounded.
  // Throws InvalidArgument for tensors that state() cannot have given, and then nothing has
  // changed; check_state() throws for the same ones.
  at::Tensor state() const;
  void load_state(const at::Tensor& state);
  static void check_state(const at::Tensor& state);

  const SavedOptions& options() const { return options_; }  // with the group that is used
  // The memory of the state itself, which graphs of torch.compile take as an input and write.
  const at::Tensor& draws() const { return draws_; }
  std::uint64_t stream() const;
  SavedTally tally() const;

  // What hooks of autograd call: x as it will be held. saved_by: what only Python sees, in the
  // tensor's class and in the frames of the caller: "subclass", "trace", "compiled graph",
  // "checkpoint", or nothing. Throws c10::Error.
  SavedTensor pack(const at::Tensor& x, std::string_view saved_by = {});
  // x as it is: where a part inside of one that is packed was excluded, or without SavedTensors at
  // work.
  static SavedTensor leave(const at::Tensor& x, bool is_excluded);

  // What a guard calls at its beginning and at its end, and Python, whose own hooks are in the
  // place of the guard. The tally begins anew, unless this thread is between the two already.
  void begin(std::optional<std::uint64_t> stream = std::nullopt);
  void end();
  // What a graph of torch.compile saves, which runs. is_first: of the graphs of a pass; the tally
  // begins anew, unless this thread is between begin() and end().
  void add_graph(const SavedTally& saved, bool is_first);

 private:
  // A piece of memory, as no other can be while a weak reference to its storage is held.
  struct Piece {
    const c10::StorageImpl* storage;
    std::int64_t offset;
    std::vector<std::int64_t> shape;  // number of values if dense, else sizes and strides
    at::ScalarType type;
    std::uint32_t version;
    auto operator<=>(const Piece&) const = default;
  };
  using Words = std::shared_ptr<const runtime::SavedWords>;
  using KnownWords = std::map<Piece, std::weak_ptr<const runtime::SavedWords>>;

  static Piece piece_of(const at::Tensor& x);
  Words find_or_pack(const at::Tensor& x, std::string_view* why);
  Words new_words(const at::Tensor& x, std::string_view* why);
  void count_left(const at::Tensor& x, const Words& words, std::string_view why);

  SavedOptions options_;
  const std::int64_t min_elements_;
  const std::string called_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t& seed() const { return static_cast<std::uint64_t*>(draws_.mutable_data_ptr())[0]; }
  std::uint64_t& number() const {
    return static_cast<std::uint64_t*>(draws_.mutable_data_ptr())[1];
  }
  at::Tensor draws_;  // int64: the seed, and how many tensors were rounded
  std::uint64_t stream_;
  SavedTally tally_;
  std::shared_ptr<runtime::SavedPass> pass_;
  KnownWords known_;  // what is packed
  KnownWords left_;   // what is not, and was counted
  std::size_t known_limit_ = 0;
};

// While it lives, what this thread saves goes through `saved_tensors`; with nested guards the
// innermost counts. Backward may run later, also after `saved_tensors` was destroyed. In a process
// whose autograd engine is Python's it throws InvalidArgument: slimgrad.saved_tensors() is for
// those.
class SavedTensorsGuard {
 public:
  explicit SavedTensorsGuard(SavedTensors& saved_tensors);
  ~SavedTensorsGuard() { saved_tensors_.end(); }
  SavedTensorsGuard(const SavedTensorsGuard&) = delete;
  SavedTensorsGuard& operator=(const SavedTensorsGuard&) = delete;

 private:
  SavedTensors& saved_tensors_;
};

// Bytes of the storages that autograd saves in a forward pass, each counted once, for the part that
// saved it first.
struct SavedBytes {
  struct Part {
    std::string name;
    std::size_t plain = 0, saved = 0;
  };
  std::vector<Part> parts;                       // in the order in which they saved something
  std::map<std::string_view, std::size_t> left;  // by reason, what was not packed under a guard
  Part total() const;
};

// Runs `forward` once, with gradients. A part is the innermost RECORD_USER_SCOPE that is running,
// or without one the operation that the program called, such as "aten::addmm". plain: what torch
// would save; saved: what is saved with the guards that `forward` makes. live_anyway: parameters
// and buffers, which are not counted. What a forward pass changes (running means, generators, the
// numbers of SavedTensors) stays changed. Throws what `forward` throws, and InvalidArgument where a
// guard does.
SavedBytes saved_bytes(const std::function<void()>& forward,
                       const std::vector<at::Tensor>& live_anyway = {});

}  // namespace slimgrad

#endif  // SLIMGRAD_SAVED_TENSORS_H_
