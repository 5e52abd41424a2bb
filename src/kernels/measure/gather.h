// The values of a sample, as float32.
//
// Each is on a cache line of its own, and the CPU cannot guess which: so it is asked for, and read
// when as many others have been asked for.
#ifndef SLIMGRAD_KERNELS_MEASURE_GATHER_H_
#define SLIMGRAD_KERNELS_MEASURE_GATHER_H_

#include <algorithm>
#include <cstdint>

#include "kernels/half_float.h"
#include "kernels/measure/stratified_sample.h"

namespace slimgrad::kernels {

// Positions first to last - 1 of the sample, to out[first] and so on.
template <typename T>
void gather(const T* data, const StratifiedSample& sample, std::uint64_t first, std::uint64_t last,
            float* out) noexcept {
  constexpr std::uint64_t kAsked = 32;
  std::uint64_t asked[kAsked] = {};
  sample.visit(first, last, [&](std::uint64_t i, std::uint64_t position) {
    __builtin_prefetch(data + position);
    if (i >= first + kAsked) out[i - kAsked] = to_float(data[asked[i % kAsked]]);
    asked[i % kAsked] = position;
  });
  for (std::uint64_t i = std::max(first, last - std::min(last, kAsked)); i < last; ++i)
    out[i] = to_float(data[asked[i % kAsked]]);
}

// Every `every`-th position only, out[i] being that of i * every.
template <typename T>
void gather_every(const T* data, const StratifiedSample& sample, std::uint64_t every,
                  std::uint64_t first, std::uint64_t last, float* out) noexcept {
  if (every == 1) return gather(data, sample, first, last, out);
  for (std::uint64_t i = first; i < last; ++i) out[i] = to_float(data[sample.position(i * every)]);
}

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_GATHER_H_
