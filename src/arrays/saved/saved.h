// What backward keeps of an array, as words, and the array again: with few bits a value
// (formats/saved.h), or exactly, without its zeros (formats/exact.h).
//
// Both directions cut the array into tasks of kTaskValues; the words do not depend on which
// thread does which. Thread-safe.
#ifndef SLIMGRAD_ARRAYS_SAVED_SAVED_H_
#define SLIMGRAD_ARRAYS_SAVED_SAVED_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "formats/exact.h"
#include "formats/saved.h"

namespace slimgrad {

// The group that a width has unless another is asked for.
constexpr std::int64_t default_saved_group(std::int64_t bits) { return bits == 2 ? 64 : 256; }

// Throws InvalidArgument, in the name of `op`, for widths, groups (0: the default one) and names of
// a rounding that do not exist.
saved::Format saved_format(std::string_view op, std::int64_t bits, std::int64_t group,
                           std::string_view rounding);

// Returns the number of bad groups, which the last word holds, too. The draws are those of `number`
// among all that a seed makes.
// REQUIRES: words.size() is saved::num_words(values.size(), format).
template <typename T>
std::size_t pack_saved(std::span<const T> values, const saved::Format& format, std::uint64_t seed,
                       std::uint64_t number, const Parallel& parallel,
                       std::span<std::uint32_t> words);
template <typename T>
void unpack_saved(std::span<const std::uint32_t> words, const saved::Format& format,
                  const Parallel& parallel, std::span<T> values);

// Bools, a byte each of which nonzero is true, as bits: that of value i is bit i % 8 of byte i / 8.
// REQUIRES: bits.size() is bool_bytes(values.size()).
constexpr std::size_t bool_bytes(std::size_t num_values) { return (num_values + 7) / 8; }
void pack_bools(std::span<const std::uint8_t> values, const Parallel& parallel,
                std::span<std::uint8_t> bits);
void unpack_bools(std::span<const std::uint8_t> bits, const Parallel& parallel,
                  std::span<std::uint8_t> values);

// ---- exactly -----------------------------------------------------------------------------------

// Where everything lies, after a count of the survivors of every task.
struct ExactLayout {
  std::vector<std::uint64_t> begins;  // one more than tasks
  std::size_t masks;                  // where they begin
  std::size_t num_bytes() const { return begins.back(); }
};

// width: of a value in bytes, 2 or 4.
ExactLayout exact_layout(const void* values, std::size_t num_values, std::size_t width,
                         const Parallel& parallel);
// REQUIRES: the layout is that of the values, and bytes.size() its num_bytes().
void pack_exactly(const void* values, std::size_t num_values, std::size_t width,
                  const ExactLayout& layout, const Parallel& parallel,
                  std::span<std::uint8_t> bytes);

// The value of all that is not 0, if there is one such value. Looks at little of other arrays.
std::optional<std::uint32_t> only_survivor(const void* values, std::size_t num_values,
                                           std::size_t width, const Parallel& parallel);
// REQUIRES: `survivor` is that of the values, and bytes.size() is exact::mask_bytes(num_values).
void keep_mask(const void* values, std::size_t num_values, std::size_t width,
               std::uint32_t survivor, const Parallel& parallel, std::span<std::uint8_t> bytes);

// What either of the two wrote. Throws InvalidArgument for bytes that do not hold `num_values`
// values.
void restore_exactly(std::span<const std::uint8_t> bytes, std::size_t width,
                     const Parallel& parallel, void* values, std::size_t num_values);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SAVED_SAVED_H_
