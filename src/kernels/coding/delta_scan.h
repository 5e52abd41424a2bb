// Passes over the values of a block of a delta (formats/delta_values.h): what changed, the classes
// of the base, sums of hazards, and the positions that a stream of gaps and slots stands for.
// Values need no alignment. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_
#define SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/delta_values.h"
#include "kernels/coding/wide_rans.h"

namespace slimgrad::kernels {

// Arrays of classes have this many zeros behind the last, and are read and written up to there.
inline constexpr std::size_t kClassMargin = 64;

// Bit k of word m: value 64 m + k is not the same in both. Bits after the last value are 0.
void mark_changes(const std::uint8_t* base, const std::uint8_t* changed, std::size_t num_values,
                  std::size_t width, std::uint64_t* marks) noexcept;
// The same for classes that are 0.
void mark_dense(const std::uint8_t* classes, std::size_t num_values, std::uint64_t* marks) noexcept;

// The class of every value, then kClassMargin zeros.
void value_classes(const std::uint8_t* values, std::size_t num_values,
                   const delta_format::ValueType& type, int split, std::uint8_t* classes) noexcept;

using Hazards = std::array<std::uint16_t, delta_format::kClasses>;  // that of class 0 is 0

// sums[g], for g from 0 to ceil(num_values / 8): the hazards of the first 8 g values, added up.
// Then kSumMargin times the largest number.
inline constexpr std::size_t kSumMargin = 16;
void sum_hazards(const std::uint8_t* classes, std::size_t num_values, const Hazards& hazards,
                 std::uint32_t* sums) noexcept;

// The hazards of the values before `position`.
inline std::uint32_t hazards_before(std::size_t position, const std::uint8_t* classes,
                                    const Hazards& hazards, const std::uint32_t* sums) noexcept {
  std::uint32_t sum = sums[position / 8];
  for (std::size_t i = position / 8 * 8; i < position; ++i) sum += hazards[classes[i]];
  return sum;
}

// positions[k]: the value whose hazard the k-th gap and the next slot of the stream point into.
// False if one points behind the last value. REQUIRES: gaps below 2^16.
bool find_positions(std::span<const std::uint16_t> gaps, const std::uint8_t* classes,
                    std::size_t num_values, const Hazards& hazards, const std::uint32_t* sums,
                    WideRansDecoder& decoder, WideRansWords& words,
                    std::uint32_t* positions) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_
