// Pruning, quantizing, both, and encoding to one byte a code, over one piece of an array. The
// scalar versions are the specification; every other gives the same bits and the same counts.
#ifndef SLIMGRAD_KERNELS_APPLY_H_
#define SLIMGRAD_KERNELS_APPLY_H_

#include <cstddef>
#include <cstdint>

#include <slimgrad/half.h>
#include <slimgrad/quantize.h>

#include "kernels/apply_plan.h"

namespace slimgrad::kernels {

// in == out is allowed. The index of in[0] is first_index.
// REQUIRES: first_index is a multiple of kPieceElements.
template <typename T>
ApplyCounts apply(const Plan& plan, const T* in, T* out, std::size_t num_values,
                  std::uint64_t first_index) noexcept;
template <typename T>
ApplyCounts apply_scalar(const Plan& plan, const T* in, T* out, std::size_t num_values,
                         std::uint64_t first_index) noexcept;

// The codes of plan.grid; the plan's pruning is not looked at. Of the counts, zeros are the codes
// 0.
template <typename T>
ApplyCounts encode(const Plan& plan, const T* in, std::uint8_t* codes, std::size_t num_values,
                   std::uint64_t first_index) noexcept;
template <typename T>
ApplyCounts encode_scalar(const Plan& plan, const T* in, std::uint8_t* codes,
                          std::size_t num_values, std::uint64_t first_index) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_APPLY_H_
