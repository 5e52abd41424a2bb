// Counts what autograd saves in a thread, and what packers hold in its place.
#ifndef SLIMGRAD_RUNTIME_SAVED_SAVED_BYTES_H_
#define SLIMGRAD_RUNTIME_SAVED_SAVED_BYTES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <slimgrad/saved_tensors.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/saved/saved_words.h"

namespace slimgrad::runtime {

// Gives the program the engine that calls our hooks; throws InvalidArgument, in the name of `op`,
// where it has another one than torch's.
void use_saving_engine(const char* op);

class SavedBytesCount {
 public:
  // What this thread saves from now on is counted.
  explicit SavedBytesCount(const std::vector<at::Tensor>& live_anyway);
  ~SavedBytesCount() { stop(); }
  void stop();
  static bool is_counting();
  // Until stop() operations are the parts, as torch's own marks around them tell it.
  void name_operations();
  // To all counts of this thread: x is saved, and `instead` is what a packer holds in its place,
  // null if none is at work; why it is left, if it is.
  static void tell(const at::Tensor& x, const SavedWords* instead, std::string_view why);

  // To all counts: a graph of torch.compile saves this. has_hooks: what it holds is told as well.
  static void tell_graph(const SavedTally& saved, bool has_hooks);

  // The part that saves is the last one that has begun.
  void begin_part(std::string name) { parts_.push_back(std::move(name)); }
  void end_part() { parts_.pop_back(); }
  void saved(const at::Tensor& x, const SavedWords* instead, std::string_view why);
  const SavedBytes& bytes() const { return bytes_; }

 private:
  // Weak references: nothing is held, and nothing else gets the place of what was counted.
  using Storages = std::map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>>;
  static bool is_new(const at::Tensor& x, Storages* storages);
  SavedBytes::Part& part();

  SavedBytes bytes_;
  std::vector<std::string> parts_ = {""};
  Storages live_anyway_, plain_, held_;
  std::uint64_t naming_ = 0;  // the callback
};

}  // namespace slimgrad::runtime

#endif  // SLIMGRAD_RUNTIME_SAVED_SAVED_BYTES_H_
