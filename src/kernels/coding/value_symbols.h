// Values as 8-bit symbols and back, for payloads: the classes of a pruned tensor, counts, tables,
// and sums of what comes back. T is float, BFloat16Bits or Float16Bits. Plain loops that compilers
// vectorize. noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_VALUE_SYMBOLS_H_
#define SLIMGRAD_KERNELS_CODING_VALUE_SYMBOLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

// What a value that is not +0 is: +threshold, -threshold, or anything else, which is a survivor and
// is copied to `survivors`. Returns how many there are. REQUIRES: classes and survivors have room
// for as many as there are values.
inline constexpr std::uint8_t kPositiveClass = 0, kNegativeClass = 1, kSurvivorClass = 2;
template <typename T>
std::size_t split_classes(std::span<const T> values, T threshold, std::uint8_t* classes,
                          T* survivors) noexcept;
// REQUIRES: no class is above kSurvivorClass; survivors has one more value than there are
// survivors.
template <typename T>
void merge_classes(std::span<const std::uint8_t> classes, T threshold, const T* survivors,
                   T* values) noexcept;

std::uint8_t largest_symbol(std::span<const std::uint8_t> symbols) noexcept;
std::size_t count_symbol(std::span<const std::uint8_t> symbols, std::uint8_t symbol) noexcept;
// How often each symbol occurs. REQUIRES: fewer than 2^32 of them.
using ByteCounts = std::array<std::uint32_t, 256>;
ByteCounts count_bytes(std::span<const std::uint8_t> bytes) noexcept;

template <typename T>
void look_up(std::span<const std::uint8_t> symbols, const std::array<T, 256>& table,
             T* values) noexcept;

// sums[i] += values[i] in float32, each with one rounding.
template <typename T>
void add_values(const T* values, std::size_t num_values, float* sums) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_VALUE_SYMBOLS_H_
