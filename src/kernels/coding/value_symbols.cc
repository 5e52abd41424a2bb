#include "kernels/coding/value_symbols.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include <slimgrad/half.h>

#include "kernels/half_float.h"

namespace slimgrad::kernels {
namespace {

template <typename T>
using WordOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;

template <typename T>
inline constexpr WordOf<T> kSign = static_cast<WordOf<T>>(WordOf<T>{1} << (8 * sizeof(T) - 1));

template <typename T>
WordOf<T> word_of(T value) {
  return std::bit_cast<WordOf<T>>(value);
}

// Tensors that were not pruned at all, but have zeros, are coded as classes too, and then nearly
// all that is not zero survives. So both directions look at this many at once, and move them as
// they are if all survive: half as long as one by one, or less.
constexpr std::size_t kAtOnce = 16;

template <typename T>
bool all_survive(const T* values, T threshold) {
  using Word = WordOf<T>;
  const auto magnitude = static_cast<Word>(~kSign<T>);
  Word pruned = 0;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    const bool equal = static_cast<Word>(word_of(values[i]) & magnitude) == word_of(threshold);
    pruned = static_cast<Word>(pruned | Word{equal});
  }
  return pruned == 0;
}

bool all_survive(const std::uint8_t* classes) {
  std::uint8_t other = 0;
  for (std::size_t i = 0; i < kAtOnce; ++i)
    other = static_cast<std::uint8_t>(other | (classes[i] ^ kSurvivorClass));
  return other == 0;
}

}  // namespace

template <typename T>
std::size_t split_classes(std::span<const T> values, T threshold, std::uint8_t* classes,
                          T* survivors) noexcept {
  using Word = WordOf<T>;
  const Word positive = word_of(threshold);
  const auto negative = static_cast<Word>(positive | kSign<T>);
  std::size_t count = 0;
  for (std::size_t first = 0; first < values.size(); first += kAtOnce) {
    const std::size_t size = std::min(kAtOnce, values.size() - first);
    if (size == kAtOnce && all_survive(&values[first], threshold)) {
      std::fill_n(classes + first, kAtOnce, kSurvivorClass);
      std::copy_n(&values[first], kAtOnce, survivors + count);
      count += kAtOnce;
      continue;
    }
    for (std::size_t i = first; i < first + size; ++i) {
      const Word word = word_of(values[i]);
      // Arithmetic, because a branch on a pruned value is a coin toss.
      const bool above = word == positive, below = word == negative;
      const auto kind = static_cast<std::uint8_t>(kSurvivorClass - 2 * int{above} - int{below});
      classes[i] = kind;
      survivors[count] = values[i];
      count += kind == kSurvivorClass ? 1 : 0;
    }
  }
  return count;
}

template <typename T>
void merge_classes(std::span<const std::uint8_t> classes, T threshold, const T* survivors,
                   T* values) noexcept {
  using Word = WordOf<T>;
  const Word positive = word_of(threshold);
  const std::array<Word, 3> words = {positive, static_cast<Word>(positive | kSign<T>), 0};
  for (std::size_t first = 0; first < classes.size(); first += kAtOnce) {
    const std::size_t size = std::min(kAtOnce, classes.size() - first);
    if (size == kAtOnce && all_survive(&classes[first])) {
      std::copy_n(survivors, kAtOnce, values + first);
      survivors += kAtOnce;
      continue;
    }
    for (std::size_t i = first; i < first + size; ++i) {
      const bool survives = classes[i] == kSurvivorClass;
      const Word word = survives ? word_of(*survivors) : words[classes[i]];
      values[i] = std::bit_cast<T>(word);
      survivors += survives ? 1 : 0;
    }
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

ByteCounts count_bytes(std::span<const std::uint8_t> bytes) noexcept {
  // Equal neighbours would wait for each other's increment; four tables keep them apart. About one
  // cycle a byte: the stores are the limit.
  std::uint32_t tables[4][256] = {};
  std::size_t i = 0;
  for (; i + 16 <= bytes.size(); i += 16) {
    std::uint32_t words[4];
    std::memcpy(words, bytes.data() + i, 16);
    for (const std::uint32_t word : words) {
      ++tables[0][word & 0xff];
      ++tables[1][word >> 8 & 0xff];
      ++tables[2][word >> 16 & 0xff];
      ++tables[3][word >> 24];
    }
  }
  for (; i < bytes.size(); ++i) ++tables[0][bytes[i]];
  ByteCounts counts = {};
  for (const auto& table : tables)
    for (int s = 0; s < 256; ++s) counts[s] += table[s];
  return counts;
}

template <typename T>
void look_up(std::span<const std::uint8_t> symbols, const std::array<T, 256>& table,
             T* values) noexcept {
  for (std::size_t i = 0; i < symbols.size(); ++i) values[i] = table[symbols[i]];
}

template <typename T>
void add_values(const T* values, std::size_t num_values, float* sums) noexcept {
  for (std::size_t i = 0; i < num_values; ++i) sums[i] += to_float(values[i]);
}

#define SLIMGRAD_INSTANTIATE(T)                                                                 \
  template std::size_t split_classes(std::span<const T>, T, std::uint8_t*, T*) noexcept;        \
  template void merge_classes(std::span<const std::uint8_t>, T, const T*, T*) noexcept;         \
  template void look_up(std::span<const std::uint8_t>, const std::array<T, 256>&, T*) noexcept; \
  template void add_values(const T*, std::size_t, float*) noexcept;

SLIMGRAD_INSTANTIATE(float)
SLIMGRAD_INSTANTIATE(BFloat16Bits)
SLIMGRAD_INSTANTIATE(Float16Bits)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad::kernels
