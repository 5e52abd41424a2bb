#include <slimgrad/saved_tensors.h>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "base/check.h"
#include "runtime/saved/saved_words.h"
#include "torch/checks.h"
#include "torch/device/launcher.h"
#include "torch/elements.h"
#include "torch/saved/ops.h"

namespace slimgrad {
namespace runtime {

SavedWords::SavedWords(const at::Tensor& x, at::Tensor packed, Way way, const SavedOptions& options)
    : tensor(std::move(packed)),
      way(way),
      options(options),
      type(x.scalar_type()),
      version(x.unsafeGetTensorImpl()->version_counter()),
      saved_version(version.current_version()) {
  if (x.has_storage()) storage = x.storage().getWeakStorageImpl();
}

std::string_view SavedWords::kind() const {
  if (way == Way::kExact) return "exact";
  if (way == Way::kCast) return "smaller type";
  return options.bits == 8 ? "8 bits" : options.bits == 4 ? "4 bits" : "2 bits";
}

std::shared_ptr<const SavedWords> packed_words(const at::Tensor& x, const SavedOptions& options,
                                               std::uint64_t seed, std::uint64_t number) {
  if (options.bits == 0) {
    if (!x.is_cpu()) return nullptr;
    at::Tensor bytes = torch_ops::packed_exact(x, false);
    if (bytes.numel() == 0) return nullptr;
    return std::make_shared<const SavedWords>(x, std::move(bytes), Way::kExact, options);
  }
  at::Tensor words = torch_ops::packed_saved(
      x, options.bits, options.group, options.is_stochastic ? "stochastic" : "nearest",
      static_cast<std::int64_t>(seed), static_cast<std::int64_t>(number));
  // The last word counts bad groups.
  if (words.is_cpu() && torch_ops::elements<std::uint32_t>(words).back() > 0) return nullptr;
  return std::make_shared<const SavedWords>(x, std::move(words), Way::kRounded, options);
}

at::Tensor without_node(const at::Tensor& x) { return x.is_leaf() ? x : x.detach(); }

}  // namespace runtime

using runtime::SavedWords;
using runtime::Way;

SavedTensor::SavedTensor(const at::Tensor& x, std::shared_ptr<const SavedWords> words,
                         std::shared_ptr<runtime::SavedPass> pass)
    : words_(std::move(words)), pass_(std::move(pass)) {
  if (words_->way == Way::kPlain) return;  // It may have no strides, and comes back as it is.
  sizes_ = x.sizes().vec();
  // Without holes, if it had some.
  strides_ = x.is_non_overlapping_and_dense()
                 ? x.strides().vec()
                 : at::empty_like(x, x.options().device(at::kMeta)).strides().vec();
}

SavedTensor::SavedTensor(const at::Tensor& x, const SavedOptions& options, std::uint64_t seed,
                         std::uint64_t number) {
  torch_ops::check_values(x, "SavedTensor");
  check(x.device().is_cpu() || torch_ops::has_device_kernels(x.device().type()), "SavedTensor",
        "a tensor on the CPU or a device with kernels", x.device().str());
  torch_ops::check_float_dtype(x, "SavedTensor");
  runtime::check_saved_options(options, "SavedTensor");
  const at::Tensor plain = x.detach();  // It has the version of x.
  auto words = runtime::packed_words(plain, options, seed, number);
  if (!words) words = std::make_shared<const SavedWords>(plain, plain, Way::kPlain);
  *this = SavedTensor(plain, std::move(words), nullptr);
}

std::size_t SavedTensor::bytes() const { return words_->tensor.nbytes(); }
bool SavedTensor::is_plain() const { return words_->way == Way::kPlain; }
bool SavedTensor::is_rounded() const { return words_->is_rounded(); }

at::Tensor SavedTensor::unpack() const {
  const std::int64_t began = runtime::nanoseconds();
  const SavedWords& words = *words_;
  // torch compares versions of what it saves itself, and not where hooks save it.
  TORCH_CHECK(words.version.current_version() == words.saved_version,
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: a saved tensor of type ",
              c10::toString(words.type), " is at version ", words.version.current_version(),
              "; expected version ", words.saved_version, " instead. (slimgrad saved it.)");
  if (words.way == Way::kPlain) return words.tensor;
  TORCH_CHECK(
      !pass_ || !words.is_rounded() || !c10::GradMode::is_enabled() ||
          torch::autograd::get_current_graph_task_id() == -1,
      "[", pass_->called,
      "] expected backward without create_graph=True, because second derivatives of rounded values "
      "would be approximate: pack this part exactly (bits='exact', in C++ bits = 0)");
  at::Tensor x;
  if (words.way == Way::kCast)
    x = words.tensor.to(words.type).as_strided(sizes_, strides_);
  else if (words.way == Way::kExact)
    x = torch_ops::unpacked_exact(words.tensor, sizes_, strides_, words.type);
  else
    x = torch_ops::unpacked_saved(words.tensor, sizes_, strides_, words.type, words.options.bits,
                                  words.options.group);
  if (pass_) pass_->unpacking_nanoseconds += runtime::nanoseconds() - began;
  return x;
}

}  // namespace slimgrad
