#include "kernels/value_symbols.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/half_float.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
using WordOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

template <typename T>
inline constexpr WordOf<T> kSign = static_cast<WordOf<T>>(WordOf<T>{1} << (8 * sizeof(T) - 1));

// Of the type itself.
template <typename T>
inline constexpr WordOf<T> kInfinity = std::is_same_v<T, float>          ? kInfinityBits
                                       : std::is_same_v<T, BFloat16Bits> ? kInfinityBits >> 16
                                                                         : 0x7c00u;

template <typename T>
WordOf<T> word_of(T value) {
  return std::bit_cast<WordOf<T>>(value);
}

template <typename T>
float value_of(T value) {
  return std::bit_cast<float>(float_bits(value));
}

}  // namespace

template <typename T>
MagnitudeRange magnitude_range(std::span<const T> values) noexcept {
  using Word = WordOf<T>;
  constexpr std::size_t kPiece = 16384;  // so that a narrow counter cannot overflow
  Word largest = 0, smallest = std::numeric_limits<Word>::max();
  MagnitudeRange range;
  for (std::size_t start = 0; start < values.size(); start += kPiece) {
    const std::size_t end = std::min(start + kPiece, values.size());
    Word nonfinite = 0;
    for (std::size_t i = start; i < end; ++i) {
      const auto magnitude = static_cast<Word>(word_of(values[i]) & ~kSign<T>);
      const bool finite = magnitude < kInfinity<T>;
      nonfinite = static_cast<Word>(nonfinite + (finite ? 0 : 1));
      largest = std::max<Word>(largest, finite ? magnitude : Word{0});
      // Zero wraps around to the largest word.
      smallest = std::min<Word>(smallest, static_cast<Word>(magnitude - 1));
    }
    range.nonfinite += nonfinite;
  }
  range.largest = magnitude_bits(std::bit_cast<T>(largest));
  if (smallest != std::numeric_limits<Word>::max())
    range.smallest = magnitude_bits(std::bit_cast<T>(static_cast<Word>(smallest + 1)));
  return range;
}

template <typename T>
void uniform_symbols(std::span<const T> values, float step, int half,
                     std::uint8_t* symbols) noexcept {
  // A float32 of 1.5 * 2^23 counts in ones: adding it rounds to an integer, ties to even, and
  // leaves that in the low bits.
  constexpr float kRound = 0x1.8p23f;
  const auto limit = static_cast<float>(half);
  const std::uint32_t offset =
      static_cast<std::uint32_t>(half) - std::bit_cast<std::uint32_t>(kRound);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float quotient = value_of(values[i]) / step;
    const float limited = std::min(std::max(quotient, -limit), limit);
    symbols[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(limited + kRound) + offset);
  }
}

template <typename T>
void uniform_symbols_stochastic(std::span<const T> values, float step, int half,
                                const RandomStream& random, std::uint64_t first_index,
                                std::uint8_t* symbols) noexcept {
  const auto limit = static_cast<float>(half);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float quotient = std::clamp(value_of(values[i]) / step, -limit, limit);
    const float below = std::floor(quotient);
    const bool up = random.happens(first_index + i, quotient - below);
    symbols[i] = static_cast<std::uint8_t>(static_cast<int>(below) + (up ? 1 : 0) + half);
  }
}

template <typename T>
std::size_t split_classes(std::span<const T> values, T threshold, std::uint8_t* classes,
                          T* survivors) noexcept {
  using Word = WordOf<T>;
  const Word positive = word_of(threshold);
  const auto negative = static_cast<Word>(positive | kSign<T>);
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Word word = word_of(values[i]);
    // Arithmetic, because a branch on a pruned value is a coin toss. +0 wins over a threshold of 0.
    const bool zero = word == 0, above = word == positive, below = word == negative;
    const auto kind =
        static_cast<std::uint8_t>(zero ? kZeroClass : kSurvivorClass - 2 * int{above} - int{below});
    classes[i] = kind;
    survivors[count] = values[i];
    count += kind == kSurvivorClass ? 1 : 0;
  }
  return count;
}

template <typename T>
void merge_classes(std::span<const std::uint8_t> classes, T threshold, const T* survivors,
                   T* values) noexcept {
  using Word = WordOf<T>;
  const Word positive = word_of(threshold);
  const std::array<Word, 4> words = {0, positive, static_cast<Word>(positive | kSign<T>), 0};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const bool survives = classes[i] == kSurvivorClass;
    const Word word = survives ? word_of(*survivors) : words[classes[i]];
    values[i] = std::bit_cast<T>(word);
    survivors += survives ? 1 : 0;
  }
}

std::uint8_t largest_symbol(std::span<const std::uint8_t> symbols) noexcept {
  std::uint8_t largest = 0;
  for (const std::uint8_t symbol : symbols) largest = std::max(largest, symbol);
  return largest;
}

std::size_t count_symbol(std::span<const std::uint8_t> symbols, std::uint8_t symbol) noexcept {
  return static_cast<std::size_t>(std::count(symbols.begin(), symbols.end(), symbol));
}

template <typename T>
void look_up(std::span<const std::uint8_t> symbols, const std::array<T, 256>& table,
             T* values) noexcept {
  for (std::size_t i = 0; i < symbols.size(); ++i) values[i] = table[symbols[i]];
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template MagnitudeRange magnitude_range(std::span<const T>) noexcept;                         \
  template void uniform_symbols(std::span<const T>, float, int, std::uint8_t*) noexcept;        \
  template void uniform_symbols_stochastic(std::span<const T>, float, int, const RandomStream&, \
                                           std::uint64_t, std::uint8_t*) noexcept;              \
  template std::size_t split_classes(std::span<const T>, T, std::uint8_t*, T*) noexcept;        \
  template void merge_classes(std::span<const std::uint8_t>, T, const T*, T*) noexcept;         \
  template void look_up(std::span<const std::uint8_t>, const std::array<T, 256>&, T*) noexcept;

SLIMGRAD_INSTANTIATE(float)
SLIMGRAD_INSTANTIATE(BFloat16Bits)
SLIMGRAD_INSTANTIATE(Float16Bits)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
