// Pruning, quantizing, both, and encoding to one byte a code, over one piece of an array. The
// scalar versions are the specification; every other gives the same bits and the same counts.
#ifndef SLIMGRAD_KERNELS_APPLY_APPLY_H_
#define SLIMGRAD_KERNELS_APPLY_APPLY_H_

#include <cstddef>
#include <cstdint>

#include <slimgrad/half.h>
#include <slimgrad/treatment.h>

#include "kernels/apply/loop_treatment.h"

namespace slimgrad::kernels {

// in == out is allowed. The index of in[0] is first_index.
// REQUIRES: first_index is a multiple of kPieceElements.
template <typename T>
ApplyCounts apply(const LoopTreatment& treatment, const T* in, T* out, std::size_t num_values,
                  std::uint64_t first_index) noexcept;
template <typename T>
ApplyCounts apply_scalar(const LoopTreatment& treatment, const T* in, T* out,
                         std::size_t num_values, std::uint64_t first_index) noexcept;

// The codes of treatment.grid; the treatment's pruning is not looked at. Of the counts, zeros are
// the codes 0.
template <typename T>
ApplyCounts encode(const LoopTreatment& treatment, const T* in, std::uint8_t* codes,
                   std::size_t num_values, std::uint64_t first_index) noexcept;
template <typename T>
ApplyCounts encode_scalar(const LoopTreatment& treatment, const T* in, std::uint8_t* codes,
                          std::size_t num_values, std::uint64_t first_index) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_APPLY_APPLY_H_
