// Seeds for callers that set none.
#ifndef SLIMGRAD_TORCH_FRESH_SEED_H_
#define SLIMGRAD_TORCH_FRESH_SEED_H_

#include <ATen/ops/randint.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace slimgrad::torch_ops {

// From torch's generator, the number that fresh_seed() in Python takes from it.
inline std::uint64_t fresh_seed() {
  return static_cast<std::uint64_t>(
      at::randint(std::int64_t{1} << 62, {}, at::kLong).item<std::int64_t>());
}

// The same for calls that draw at once and keep no seed: quantize, prune, pack, encode. Without a
// seed one comes from torch's generator, but only if the call draws.
inline std::uint64_t seed_or_draw(std::optional<std::int64_t> seed, bool draws) {
  if (seed) return static_cast<std::uint64_t>(*seed);
  if (!draws) return 0;
  using Limits = std::numeric_limits<std::int64_t>;
  return static_cast<std::uint64_t>(
      at::randint(Limits::min(), Limits::max(), {}, at::kLong).item<std::int64_t>());
}
// A seed that is a symbol during tracing does not matter there.
inline std::uint64_t seed_or_draw(const std::optional<c10::SymInt>&, bool) { return 0; }

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FRESH_SEED_H_
