// Taking the commonest symbol out: eight positions become one mask byte, and only the other symbols
// stay. A pruned gradient is mostly zeros; so its coder handles n/8 masks and the survivors instead
// of n symbols, and a symbol with most of the probability, which costs less than a bit, is no
// special case.
//
// Bit k of mask m says that position 8 m + k holds something else; bits after the last position are
// zero. The others are stored less `zero`, modulo 256, so that merging is an addition.
// noexcept, no allocation, any thread.
#ifndef SLIMGRAD_KERNELS_CODING_ZERO_MASK_H_
#define SLIMGRAD_KERNELS_CODING_ZERO_MASK_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

// The vector code moves eight bytes at a time: `others` needs this many more than it holds.
inline constexpr std::size_t kZeroMaskSlack = 8;

constexpr std::size_t num_masks(std::size_t num_symbols) { return (num_symbols + 7) / 8; }

// Returns how many others there are.
// REQUIRES: masks has num_masks(symbols.size()) bytes, others symbols.size() + kZeroMaskSlack.
std::size_t split_zeros(std::span<const std::uint8_t> symbols, std::uint8_t zero,
                        std::span<std::uint8_t> masks, std::span<std::uint8_t> others) noexcept;

// How many others the masks of num_symbols positions announce; more than num_symbols if a bit after
// the last position is set.
std::size_t count_others(std::span<const std::uint8_t> masks, std::size_t num_symbols) noexcept;

// REQUIRES: masks has num_masks(symbols.size()) bytes, and others count_others() + kZeroMaskSlack,
// where count_others() <= symbols.size().
void merge_zeros(std::span<const std::uint8_t> masks, std::span<const std::uint8_t> others,
                 std::uint8_t zero, std::span<std::uint8_t> symbols) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_ZERO_MASK_H_
