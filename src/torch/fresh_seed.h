// Seeds for callers that set none.
#ifndef SLIMGRAD_TORCH_FRESH_SEED_H_
#define SLIMGRAD_TORCH_FRESH_SEED_H_

#include <ATen/ops/randint.h>

#include <cstdint>

namespace slimgrad::torch_ops {

// From torch's generator, the number that fresh_seed() in Python takes from it.
inline std::uint64_t fresh_seed() {
  return static_cast<std::uint64_t>(
      at::randint(std::int64_t{1} << 62, {}, at::kLong).item<std::int64_t>());
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FRESH_SEED_H_
