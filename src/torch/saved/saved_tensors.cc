// torch asks its autograd engine for hooks whenever it saves a tensor. The engine of C++ programs
// has none and Python's has those of Python, so a program that keeps gets an engine of ours, which
// differs from torch's own in that answer alone.
#include <slimgrad/saved_tensors.h>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <slimgrad/gate.h>
#include <slimgrad/seed.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "torch/fresh_seed.h"
#include "torch/saved/ops.h"
#include "torch/saved/saving_rules.h"

namespace slimgrad {
namespace {

using torch_ops::Saving;

// ---- what autograd holds -----------------------------------------------------------------------

class PackedOnSave final : public torch::autograd::SavedVariableHooks {
 public:
  explicit PackedOnSave(SavedTensors& saved_tensors) : saved_tensors_(&saved_tensors) {}

  // Called at once, under the guard; unpacking may come after the saved_tensors is gone.
  void call_pack_hook(const at::Tensor& x) override {
    saved_ = saved_tensors_->keep(x);
    is_dense_ = x.layout() == at::kStrided && x.is_non_overlapping_and_dense();
    if (!is_dense_) return;
    sizes_ = x.sizes().vec();
    strides_ = x.strides().vec();
  }

  at::Tensor call_unpack_hook() override {
    TORCH_CHECK(
        !saved_->is_rounded() || !c10::GradMode::is_enabled() ||
            torch::autograd::get_current_graph_task_id() == -1,
        "[SavedTensors] expected backward without create_graph, as second derivatives of rounded "
        "values would be approximate in silence: keep this part with bits = 0");
    const at::Tensor x = saved_->unpack();
    if (!is_dense_ || (x.sizes() == sizes_ && x.strides() == strides_)) return x;
    return at::as_strided(x, sizes_, strides_, x.storage_offset());  // another view of the piece
  }

 private:
  SavedTensors* const saved_tensors_;
  std::shared_ptr<const SavedTensor> saved_;
  bool is_dense_ = false;
  std::vector<std::int64_t> sizes_, strides_;
};

// ---- the engine --------------------------------------------------------------------------------

thread_local SavedTensors* active = nullptr;

class SavingEngine final : public torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (active == nullptr) return nullptr;
    return std::make_unique<PackedOnSave>(*active);
  }
};

torch::autograd::Engine& saving_engine() {
  static SavingEngine engine;
  return engine;
}

void use_saving_engine() {
  using torch::autograd::Engine;
  const Engine* const now = &Engine::get_default_engine();
  if (now == &saving_engine()) return;
  check(now == &Engine::get_base_engine(), "SavedTensorsGuard",
        "a program with libtorch's own engine",
        "another one: under Python slimgrad.saved_tensors() does this");
  torch::autograd::set_default_engine_stub(&saving_engine);
}

// ---- casts -------------------------------------------------------------------------------------

// Indices, as those of a max-pooling, in as few bytes as the largest of them needs.
at::Tensor smaller_integers(const at::Tensor& x) {
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

// ---- the saved_tensors
// --------------------------------------------------------------------------------

SavedTensors::SavedTensors(const SavedOptions& options, std::optional<std::uint64_t> seed,
                           std::int64_t min_elements, std::uint64_t stream)
    : options_(options),
      seed_(seed ? *seed : torch_ops::fresh_seed()),
      stream_(stream),
      min_elements_(min_elements) {
  check(min_elements >= 0, "SavedTensors", "min_elements >= 0", min_elements);
  torch_ops::check_saved_options(options, "SavedTensors");
}

std::uint64_t SavedTensors::number() const {
  const std::lock_guard lock(mutex_);
  return number_;
}

void SavedTensors::set_number(std::uint64_t number) {
  check(number <= static_cast<std::uint64_t>(kMostCalls), "SavedTensors",
        "a number of at most 2^48", number);
  const std::lock_guard lock(mutex_);
  number_ = number;
}

SavedTensors::Bytes SavedTensors::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void SavedTensors::begin_pass() {
  const std::lock_guard lock(mutex_);
  bytes_ = {};
  std::erase_if(known_, [](const auto& known) { return known.second.saved.expired(); });
}

std::shared_ptr<const SavedTensor> SavedTensors::keep(const at::Tensor& x) {
  const std::lock_guard lock(mutex_);
  const Saving saving = torch_ops::saving_of(x, min_elements_);
  if (saving == Saving::kLivesAnyway || !x.has_storage())
    return std::make_shared<const SavedTensor>(packed(x, Saving::kLeft));
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
  const auto found = known_.find(piece);
  std::shared_ptr<const SavedTensor> known;
  if (found != known_.end()) known = found->second.saved.lock();
  // x.detach() has the memory of x, and stays exact.
  const bool may_round = saving == Saving::kPacked || saving == Saving::kLogarithm;
  if (known && (may_round || !known->is_rounded())) return known;
  auto kept = std::make_shared<const SavedTensor>(packed(x, saving));
  if (!known)
    known_.insert_or_assign(std::move(piece), Known{x.storage().getWeakStorageImpl(), kept});
  bytes_.plain += x.nbytes();
  bytes_.saved += kept->bytes();
  return kept;
}

SavedTensor SavedTensors::packed(const at::Tensor& x, Saving saving) {
  using Way = SavedTensor::Way;
  const at::Tensor plain = x.detach();  // It has the version of x, and no node that would hold it.
  const auto instead = [&](at::Tensor packed, Way way) {
    const bool is_smaller = packed.defined() && packed.numel() > 0;
    return is_smaller ? SavedTensor(plain, std::move(packed), way)
                      : SavedTensor(plain, plain, Way::kPlain);
  };
  if (saving == Saving::kLogarithm && options_.bits == 0) saving = Saving::kPacked;
  switch (saving) {
    case Saving::kIndices:
      return instead(smaller_integers(plain), Way::kCast);
    case Saving::kMask:
      return instead(torch_ops::pack_exact_cpu(plain, true), Way::kExact);
    case Saving::kCopied:
      return instead(plain.clone(), Way::kPlain);
    case Saving::kLogarithm:
      // As bfloat16 a logarithm of a probability p changes p by at most 0.0008.
      return plain.scalar_type() == at::kFloat ? instead(plain.to(at::kBFloat16), Way::kCast)
                                               : instead({}, Way::kPlain);
    case Saving::kPacked:
      break;
    case Saving::kLivesAnyway:
    case Saving::kLeft:
      return instead({}, Way::kPlain);
  }
  SavedTensor kept(x, options_, derive_seed(seed_, {stream_}), number_);
  if (kept.is_rounded()) ++number_;
  return kept;
}

// ---- the guard ---------------------------------------------------------------------------------

SavedTensorsGuard::SavedTensorsGuard(SavedTensors& saved_tensors) : before_(active) {
  use_saving_engine();
  if (before_ != &saved_tensors) saved_tensors.begin_pass();
  active = &saved_tensors;
}

SavedTensorsGuard::~SavedTensorsGuard() { active = before_; }

}  // namespace slimgrad
