// The version of a state, one of its entries.
#ifndef SLIMGRAD_RUNTIME_STATE_VERSION_H_
#define SLIMGRAD_RUNTIME_STATE_VERSION_H_

#include <ATen/ops/scalar_tensor.h>

#include <cstdint>

#include <slimgrad/nn.h>

#include "base/check.h"

namespace slimgrad::runtime {

inline constexpr const char* kVersionKey = "version";
inline constexpr std::int64_t kStateVersion = 1;

inline void add_version(nn::StateDict& state) {
  state.insert(kVersionKey, at::scalar_tensor(kStateVersion, at::kLong));
}

// Throws InvalidArgument, in the name of `op`, for another one, and for none.
inline void check_version(const nn::StateDict& state, const char* op) {
  const at::Tensor* const version = state.find(kVersionKey);
  check(version != nullptr && version->defined() && version->numel() == 1, op,
        "a state with a version", version == nullptr ? "none" : "no number");
  const auto number = version->item<double>();
  check(number == kStateVersion, op, "a state of version 1", "version ", number);
}

}  // namespace slimgrad::runtime

#endif  // SLIMGRAD_RUNTIME_STATE_VERSION_H_
