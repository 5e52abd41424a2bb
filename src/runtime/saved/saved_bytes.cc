#include "runtime/saved/saved_bytes.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace slimgrad {
namespace runtime {
namespace {

thread_local std::vector<SavedBytesCount*> counting;

}  // namespace

SavedBytesCount::SavedBytesCount(const std::vector<at::Tensor>& live_anyway) {
  for (const at::Tensor& x : live_anyway)
    if (x.defined() && x.has_storage()) is_new(x, &live_anyway_);
  counting.push_back(this);
}

void SavedBytesCount::stop() {
  std::erase(counting, this);
  if (naming_ != 0) at::removeCallback(std::exchange(naming_, 0));
}
bool SavedBytesCount::is_counting() { return !counting.empty(); }

void SavedBytesCount::tell(const at::Tensor& x, const SavedWords* instead, std::string_view why) {
  for (SavedBytesCount* count : counting) count->saved(x, instead, why);
}

void SavedBytesCount::tell_graph(const SavedTally& saved, bool has_hooks) {
  const SavedTally::Count packed = SavedTally::sum(saved.packed),
                          left = SavedTally::sum(saved.left);
  for (SavedBytesCount* count : counting) {
    SavedBytes::Part& part = count->part();
    part.plain += packed.plain_bytes + (has_hooks ? 0 : left.bytes);
    if (has_hooks) part.plain -= packed.bytes;  // Words are to come.
    if (!has_hooks) part.saved += packed.bytes + left.bytes;
    for (const auto& [why, size] : saved.left) count->bytes_.left[why] += size.bytes;
  }
}

bool SavedBytesCount::is_new(const at::Tensor& x, Storages* storages) {
  return storages->emplace(x.storage().unsafeGetStorageImpl(), x.storage().getWeakStorageImpl())
      .second;
}

SavedBytes::Part& SavedBytesCount::part() {
  const auto found = std::ranges::find(bytes_.parts, parts_.back(), &SavedBytes::Part::name);
  if (found != bytes_.parts.end()) return *found;
  return bytes_.parts.emplace_back(SavedBytes::Part{.name = parts_.back()});
}

void SavedBytesCount::saved(const at::Tensor& x, const SavedWords* instead, std::string_view why) {
  if (x.layout() != at::kStrided || !x.has_storage()) return;
  const c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  // Without values: on "meta", or a tensor subclass around others.
  if (storage->nbytes() == 0 || storage->data() == nullptr || live_anyway_.contains(storage))
    return;
  if (is_new(x, &plain_)) part().plain += storage->nbytes();
  const at::Tensor& held = instead == nullptr ? x : instead->tensor;
  if (!is_new(held, &held_)) return;
  part().saved += held.storage().nbytes();
  if (instead != nullptr && instead->way == Way::kPlain)
    bytes_.left[why] += held.storage().nbytes();
}

void SavedBytesCount::name_operations() {
  const auto began =
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    SavedBytesCount& count = *counting.back();
    // An operation inside of another, or of a scope, is a part of it.
    const bool is_inside = count.parts_.size() > 1;
    const bool is_scope = function.scope() == at::RecordScope::USER_SCOPE;
    count.begin_part(is_inside && !is_scope ? count.parts_.back() : function.name());
    return nullptr;
  };
  const auto ended = [](const at::RecordFunction&, at::ObserverContext*) {
    counting.back()->end_part();
  };
  naming_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(began, ended)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

}  // namespace runtime

SavedBytes::Part SavedBytes::total() const {
  Part total{.name = "total"};
  for (const Part& part : parts) {
    total.plain += part.plain;
    total.saved += part.saved;
  }
  return total;
}

SavedBytes saved_bytes(const std::function<void()>& forward,
                       const std::vector<at::Tensor>& live_anyway) {
  runtime::use_saving_engine("saved_bytes");
  runtime::SavedBytesCount count(live_anyway);
  const c10::AutoGradMode with_gradients(true);
  count.name_operations();
  forward();
  return count.bytes();
}

}  // namespace slimgrad
