// What a SavedTensor holds, and what all that one SavedTensors packed in a pass share.
#ifndef SLIMGRAD_RUNTIME_SAVED_SAVED_WORDS_H_
#define SLIMGRAD_RUNTIME_SAVED_SAVED_WORDS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <slimgrad/saved_tensors.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace slimgrad::runtime {

// kPlain: the tensor itself, or a copy. kCast: the same values in a type as small as they need.
enum class Way { kPlain, kRounded, kExact, kCast };

// The values of a piece of memory, packed once for all that save it.
struct SavedWords {
  SavedWords(const at::Tensor& x, at::Tensor packed, Way way, const SavedOptions& options = {});

  bool is_rounded() const {
    return way == Way::kRounded || (way == Way::kCast && at::isFloatingType(type));
  }
  std::string_view kind() const;  // as a tally has it

  at::Tensor tensor;
  Way way;
  SavedOptions options;
  at::ScalarType type;
  c10::VariableVersion version;
  std::uint32_t saved_version;
  // While it is held no other storage can have its place in memory, so that a piece is never taken
  // for another one that came after it.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  mutable std::uint64_t counted_in = 0;  // the last pass that counted it
};

// Throws InvalidArgument, in the name of `op`.
void check_saved_options(const SavedOptions& options, const char* op);

// x as options say; null where that is no use, because x holds NaN or Inf or has too few zeros. On
// a device the host never looks at values: groups with NaN or Inf become NaN (formats/saved.h), and
// what is to be exact is left as it is.
std::shared_ptr<const SavedWords> packed_words(const at::Tensor& x, const SavedOptions& options,
                                               std::uint64_t seed, std::uint64_t number);
// Detached, because what holds an output of its own node never dies. A leaf stays what it is.
at::Tensor without_node(const at::Tensor& x);

struct SavedPass {
  SavedPass(std::uint64_t number, std::string called) : number(number), called(std::move(called)) {}
  std::uint64_t number;
  std::string called;  // what errors name
  std::atomic<std::int64_t> unpacking_nanoseconds = 0;
};

inline std::int64_t nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace slimgrad::runtime

#endif  // SLIMGRAD_RUNTIME_SAVED_SAVED_WORDS_H_
