// torch asks its autograd engine for hooks whenever it saves a tensor. The engine of C++ programs
// has none and Python's has those of Python, so a program that packs gets an engine of ours, which
// differs from torch's own in that answer alone.
#include <slimgrad/saved_tensors.h>

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/zeros.h>
#include <slimgrad/gate.h>
#include <slimgrad/seed.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "arrays/saved/saved.h"
#include "base/check.h"
#include "runtime/saved/graphs.h"
#include "runtime/saved/saved_bytes.h"
#include "runtime/saved/saved_words.h"
#include "runtime/saved/saving_rules.h"
#include "torch/fresh_seed.h"
#include "torch/saved/ops.h"

namespace slimgrad {

using runtime::SavedBytesCount;
using runtime::SavedPass;
using runtime::SavedWords;
using runtime::Way;
namespace left = runtime::left;

namespace {

// Those between begin() and end() in this thread; the last one packs.
thread_local std::vector<SavedTensors*> active;

// ---- what autograd holds -----------------------------------------------------------------------

class PackedOnSave final : public torch::autograd::SavedVariableHooks {
 public:
  // Called at once, under the guard; unpacking may come after the SavedTensors is gone.
  void call_pack_hook(const at::Tensor& x) override {
    saved_ = active.empty() ? SavedTensors::leave(x, false) : active.back()->pack(x);
  }
  at::Tensor call_unpack_hook() override { return saved_->unpack(); }

 private:
  std::optional<SavedTensor> saved_;
};

// ---- the engine --------------------------------------------------------------------------------

class SavingEngine final : public torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (active.empty() && !SavedBytesCount::is_counting()) return nullptr;
    return std::make_unique<PackedOnSave>();
  }
};

torch::autograd::Engine& saving_engine() {
  static SavingEngine engine;
  return engine;
}

// ---- casts -------------------------------------------------------------------------------------

// Indices, as those of a max-pooling, in as few bytes as the largest of them needs. On a device,
// where the host would wait for that, in four: it is the device that stops at a value that needs
// more, as it does at an index out of range.
at::Tensor smaller_integers(const at::Tensor& x) {
  if (!x.is_cpu()) {
    at::Tensor smaller = x.to(at::kInt);
    at::_assert_async(smaller.eq(x).all(),
                      "[saved tensors] expected saved int64 values of at most 32 bits on a device, "
                      "got larger ones: exclude the module that saves them");
    return smaller;
  }
  const auto [least, most] = at::aminmax(x);
  const auto low = least.item<std::int64_t>(), high = most.item<std::int64_t>();
  const auto fit = [&]<typename T>(T) {
    return low >= std::numeric_limits<T>::min() && high <= std::numeric_limits<T>::max();
  };
  if (fit(std::uint8_t{})) return x.to(at::kByte);
  if (fit(std::int16_t{})) return x.to(at::kShort);
  if (fit(std::int32_t{})) return x.to(at::kInt);
  return {};
}

}  // namespace

void runtime::use_saving_engine(const char* op) {
  using torch::autograd::Engine;
  const Engine* const now = &Engine::get_default_engine();
  if (now == &saving_engine()) return;
  check(now == &Engine::get_base_engine(), op, "a program with libtorch's own engine",
        "another one: under Python slimgrad.saved_tensors() does this");
  torch::autograd::set_default_engine_stub(&saving_engine);
}

void runtime::check_saved_options(const SavedOptions& options, const char* op) {
  if (options.bits != 0) {
    check(options.bits > 0, op, "bits to be 8, 4, 2 or 0", options.bits);
    saved_format(op, options.bits, options.group, options.is_stochastic ? "stochastic" : "nearest");
    return;
  }
  check(options.group == 0, op, "no group for values that are stored exactly", options.group);
  check(options.is_stochastic, op, "no rounding for values that are stored exactly", "'nearest'");
}

// ---- the tally ---------------------------------------------------------------------------------

SavedTally::Count& SavedTally::Count::operator+=(const Count& other) {
  tensors += other.tensors;
  plain_bytes += other.plain_bytes;
  bytes += other.bytes;
  return *this;
}

SavedTally::Count SavedTally::sum(const std::map<std::string_view, Count>& counts) {
  Count total;
  for (const auto& [name, count] : counts) total += count;
  return total;
}

SavedTally::Count SavedTally::total() const {
  return sum({{"packed", sum(packed)}, {"left", sum(left)}});
}

SavedTally SavedTensors::tally() const {
  const std::lock_guard lock(mutex_);
  SavedTally tally = tally_;
  tally.unpacking_seconds = 1e-9 * static_cast<double>(pass_->unpacking_nanoseconds);
  return tally;
}

// ---- the packer --------------------------------------------------------------------------------

SavedTensors::SavedTensors(const SavedOptions& options, std::optional<std::uint64_t> seed,
                           std::int64_t min_elements, std::uint64_t stream, std::string called)
    : options_(options),
      min_elements_(min_elements),
      called_(std::move(called)),
      draws_(at::zeros({2}, at::TensorOptions().dtype(at::kLong).device(at::kCPU))),
      stream_(stream),
      pass_(std::make_shared<SavedPass>(1, called_)) {
  check(min_elements >= 0, called_, "min_elements >= 0", min_elements);
  runtime::check_saved_options(options, called_.c_str());
  if (options.bits != 0 && options.group == 0) options_.group = default_saved_group(options.bits);
  this->seed() = seed ? *seed : torch_ops::fresh_seed();
  runtime::add_to_graphs(this);
}

SavedTensors::~SavedTensors() { runtime::remove_from_graphs(this); }

std::uint64_t SavedTensors::stream() const {
  const std::lock_guard lock(mutex_);
  return stream_;
}

at::Tensor SavedTensors::state() const {
  const std::lock_guard lock(mutex_);
  return draws_.clone();
}

void SavedTensors::check_state(const at::Tensor& state) {
  check(state.defined() && state.scalar_type() == at::kLong && state.sizes() == at::IntArrayRef{2},
        "load_state", "'draws', an int64 tensor of seed and number", state.toString());
  const std::int64_t number = state[1].item<std::int64_t>();
  check(number >= 0 && number <= kMostCalls, "load_state",
        "the number of draws to be from 0 to 2^48", number);
}

void SavedTensors::load_state(const at::Tensor& state) {
  check_state(state);
  const std::lock_guard lock(mutex_);
  draws_.copy_(state);
}

void SavedTensors::begin(std::optional<std::uint64_t> stream) {
  const bool is_inside = std::ranges::count(active, this) > 0;
  active.push_back(this);
  const std::lock_guard lock(mutex_);
  if (stream) stream_ = *stream;
  if (is_inside) return;
  tally_ = {};
  pass_ = std::make_shared<SavedPass>(pass_->number + 1, called_);
  left_.clear();
}

void SavedTensors::end() {
  const auto last = std::ranges::find(active.rbegin(), active.rend(), this);
  if (last != active.rend()) active.erase(std::next(last).base());
}

SavedTensors* runtime::active_saved_tensors() { return active.empty() ? nullptr : active.back(); }

void SavedTensors::add_graph(const SavedTally& saved, bool is_first) {
  const std::lock_guard lock(mutex_);
  if (is_first && std::ranges::count(active, this) == 0) tally_ = {};
  for (const auto& [kind, count] : saved.packed) tally_.packed[kind] += count;
  for (const auto& [why, count] : saved.left) tally_.left[why] += count;
}

SavedTensor SavedTensors::leave(const at::Tensor& x, bool is_excluded) {
  const at::Tensor plain = runtime::without_node(x);
  auto words = std::make_shared<const SavedWords>(plain, plain, Way::kPlain);
  SavedBytesCount::tell(x, is_excluded ? words.get() : nullptr, left::kExcluded);
  return SavedTensor(plain, std::move(words), nullptr);
}

SavedTensor SavedTensors::pack(const at::Tensor& x, std::string_view saved_by) {
  const std::int64_t began = runtime::nanoseconds();
  std::string_view why = runtime::reason_to_leave(x, min_elements_, saved_by);
  Words words;
  if (why.empty() || runtime::may_be_smaller(x, why, min_elements_)) {
    const std::lock_guard lock(mutex_);
    words = find_or_pack(x, &why);
  }
  // Without the lock: of a tensor subclass detach() is a call of Python.
  if (!words && runtime::is_copied(x, why))
    words = std::make_shared<const SavedWords>(x, x.detach().clone(), Way::kPlain);
  if (!words) {
    const at::Tensor plain = runtime::without_node(x);
    words = std::make_shared<const SavedWords>(plain, plain, Way::kPlain);
  }
  SavedBytesCount::tell(x, words.get(), why);
  const std::lock_guard lock(mutex_);
  if (words->way == Way::kPlain) {
    count_left(x, words, why);
  } else if (words->counted_in != pass_->number) {
    words->counted_in = pass_->number;
    tally_.packed[words->kind()] += {1, x.nbytes(), words->tensor.nbytes()};
  }
  tally_.packing_seconds += 1e-9 * static_cast<double>(runtime::nanoseconds() - began);
  return SavedTensor(x, std::move(words), pass_);
}

SavedTensors::Piece SavedTensors::piece_of(const at::Tensor& x) {
  // Dense tensors are packed in the order of memory: of all views of a piece it is the same.
  Piece piece{x.storage().unsafeGetStorageImpl(),
              x.storage_offset(),
              {x.numel()},
              x.scalar_type(),
              x.unsafeGetTensorImpl()->version_counter().current_version()};
  if (!x.is_non_overlapping_and_dense()) {
    piece.shape = x.sizes().vec();
    piece.shape.insert(piece.shape.end(), x.strides().begin(), x.strides().end());
  }
  return piece;
}

// why: empty, or a reason for which only masks and indices are packed, exactly. Returns null, and
// the reason, for what is left.
SavedTensors::Words SavedTensors::find_or_pack(const at::Tensor& x, std::string_view* why) {
  Piece piece = piece_of(x);
  const auto found = known_.find(piece);
  Words known = found == known_.end() ? nullptr : found->second.lock();
  // x.detach() has the memory of x, and stays exact.
  if (known && (why->empty() || !known->is_rounded())) return known;
  Words words = new_words(x, why);
  if (words && !known) {
    known_.insert_or_assign(std::move(piece), words);
    if (known_.size() > known_limit_) {
      std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
      known_limit_ = 2 * known_.size() + 64;
    }
  }
  return words;
}

SavedTensors::Words SavedTensors::new_words(const at::Tensor& x, std::string_view* why) {
  const at::Tensor plain = x.detach();  // It has the version of x, and no node that would hold it.
  const auto instead = [&](at::Tensor packed, Way way) -> Words {
    if (!packed.defined() || packed.numel() == 0) return nullptr;
    return std::make_shared<const SavedWords>(plain, std::move(packed), way);
  };
  if (*why == left::kType) return instead(smaller_integers(plain), Way::kCast);
  if (!why->empty())
    return x.is_cpu() ? instead(torch_ops::packed_exact(plain, true), Way::kExact) : nullptr;
  if (options_.bits != 0 && runtime::is_logarithm(x)) {
    *why = left::kLogarithm;
    // As bfloat16 a logarithm of a probability p changes p by at most 0.0008.
    const bool is_long = plain.scalar_type() == at::kFloat;
    return instead(is_long ? plain.to(at::kBFloat16) : at::Tensor(), Way::kCast);
  }
  *why = options_.bits != 0 ? left::kNotFinite : x.is_cpu() ? left::kDense : left::kExactDevice;
  const std::atomic_ref number(this->number());  // of graphs, too, which do not take the lock
  Words words =
      runtime::packed_words(plain, options_, derive_seed(seed(), {stream_}), number.load());
  if (words && words->is_rounded()) ++number;
  return words;
}

void SavedTensors::count_left(const at::Tensor& x, const Words& words, std::string_view why) {
  const bool has_symbols = x.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  if (runtime::lives_anyway(why) || x.layout() != at::kStrided || has_symbols) return;
  if (why != left::kSubclass && x.has_storage() && !runtime::is_copied(x, why)) {
    auto& counted = left_[piece_of(x)];
    if (!counted.expired()) return;
    counted = words;
  }
  tally_.left[why] += {1, x.nbytes(), x.nbytes()};
}

// ---- the guard ---------------------------------------------------------------------------------

SavedTensorsGuard::SavedTensorsGuard(SavedTensors& saved_tensors) : saved_tensors_(saved_tensors) {
  runtime::use_saving_engine("SavedTensorsGuard");
  saved_tensors.begin();
}

}  // namespace slimgrad
