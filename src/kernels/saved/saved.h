// Packing what backward keeps, and back: formats/saved.h has the rules and the layout.
//
// Every version gives the same bits: differences and products are rounded once each, never fused,
// but where the product is exact. A block is read from memory once: its minima and maxima are found
// while it comes into the cache, and it is coded from there.
#ifndef SLIMGRAD_KERNELS_SAVED_SAVED_H_
#define SLIMGRAD_KERNELS_SAVED_SAVED_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <slimgrad/half.h>

#include "base/rng.h"
#include "formats/saved.h"

namespace slimgrad::kernels {

// Writes the codes of all blocks of `values` and the scales of their groups, and returns how many
// groups are bad. first_index: of the first value among those of the tensor, for the draws.
// REQUIRES: first_index is a multiple of saved::kBlockValues; codes and scales have the sizes of
// saved::code_words and saved::num_groups.
template <typename T>
std::size_t pack_saved_scalar(std::span<const T> values, const saved::Format& format,
                              const RandomStream& random, std::uint64_t first_index,
                              std::uint32_t* codes, std::uint32_t* scales) noexcept;
template <typename T>
std::size_t pack_saved(std::span<const T> values, const saved::Format& format,
                       const RandomStream& random, std::uint64_t first_index, std::uint32_t* codes,
                       std::uint32_t* scales) noexcept;

// The levels of all codes, rounded to the nearest number of the type; beyond its range, the
// largest.
template <typename T>
void unpack_saved_scalar(const std::uint32_t* codes, const std::uint32_t* scales,
                         const saved::Format& format, std::span<T> values) noexcept;
template <typename T>
void unpack_saved(const std::uint32_t* codes, const std::uint32_t* scales,
                  const saved::Format& format, std::span<T> values) noexcept;

// All four exist for float, BFloat16Bits and Float16Bits.

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_SAVED_SAVED_H_
