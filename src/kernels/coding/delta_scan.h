// Passes over the values of a block of a delta (formats/delta_values.h): what changed, the classes
// of the base, sums of hazards, and the positions that a stream of gaps and slots stands for.
// Values need no alignment. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_
#define SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Where marks are set, in order; returns how many are. `positions` has room for all values, and
// kMarkMargin more.
inline constexpr std::size_t kMarkMargin = 4;
std::size_t list_marks(const std::uint64_t* marks, std::size_t num_values,
                       std::uint32_t* positions) noexcept;

// The class of every value, then kClassMargin zeros.
void value_classes(const std::uint8_t* values, std::size_t num_values,
                   const delta_format::ValueType& type, int split, std::uint8_t* classes) noexcept;

using Hazards = std::array<std::uint16_t, delta_format::kClasses>;  // that of class 0 is 0

// sums[g], for g from 0 to ceil(num_values / 8): the hazards of the first 8 g values, added up.
// Then kSumMargin times the largest number. REQUIRES: at most kLaneValues.
inline constexpr std::size_t kSumMargin = 16;
void sum_hazards(const std::uint8_t* classes, std::size_t num_values, const Hazards& hazards,
                 std::uint32_t* sums) noexcept;

// The hazards of the values before `position`.
inline std::uint32_t hazards_before(std::size_t position, const std::uint8_t* classes,
                                    const Hazards& hazards, const std::uint32_t* sums) noexcept {
  // Classes from the position on become 0, whose hazard is 0: no branch depends on the position,
  // which is random.
  std::uint64_t eight;
  std::memcpy(&eight, classes + position / 8 * 8, 8);
  eight &= (std::uint64_t{1} << 8 * (position % 8)) - 1;
  std::uint32_t sum = sums[position / 8];
  for (int k = 0; k < 7; ++k) sum += hazards[eight >> 8 * k & 0xff];
  return sum;
}

// A change that a stream stands for: where, and its difference as a symbol with its raw bits.
struct DeltaChange {
  std::uint64_t extra;
  std::uint32_t position;
  std::uint8_t symbol;
};

// One lane of a block, and its stream: symbols of dense values, then sparse changes.
struct ChangeLane {
  std::uint8_t* values;
  const std::uint32_t* positions;  // of the dense values; null if all are
  std::size_t num_dense;
  const std::uint8_t* classes;
  const std::uint32_t* sums;
  std::size_t num_values;
  std::size_t num_changes;
  DeltaChange* changes;
  WideRansDecoder decoder;
  WideRansWords words;
};
struct ChangeTables {
  Hazards hazards;
  const std::uint32_t* gaps;                                              // of RansDecodeTables
  std::array<const std::uint32_t*, delta_format::kClasses> symbols = {};  // by class, from 1 on
  std::array<const std::uint32_t*, 256> dense = {};                       // by exponent
};

// Lanes take turns: of one alone every step would wait for the one before.
inline constexpr std::size_t kMostTurns = 2 * delta_format::kMostLanes;  // lanes at once

// Decodes and writes the dense values.
void decode_dense(std::span<ChangeLane> lanes, const delta_format::ValueType& type,
                  const ChangeTables& tables) noexcept;

// Then, decodes the sparse changes. False if one points behind the last value.
bool decode_changes(std::span<ChangeLane> lanes, const ChangeTables& tables) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_DELTA_SCAN_H_
