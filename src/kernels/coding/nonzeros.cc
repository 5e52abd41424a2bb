#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding/nonzeros.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/coding/nonzeros.h"
#include "kernels/dispatch.h"

#ifndef SLIMGRAD_KERNELS_NONZEROS_ONCE_
#define SLIMGRAD_KERNELS_NONZEROS_ONCE_
namespace slimgrad::kernels::nonzeros {

// For each set of lanes of 16 bytes, the byte shuffles that move their words to the front, and back
// to their places with zeros (0x80 asks for a zero) between them.
template <typename Word>
struct ShuffleTables {
  static constexpr std::size_t kLanes = 16 / sizeof(Word);
  alignas(64) std::array<std::array<std::uint8_t, 16>, 1 << kLanes> to_front, to_place;
  constexpr ShuffleTables() : to_front(), to_place() {
    for (std::size_t set = 0; set < 1 << kLanes; ++set)
      for (std::size_t lane = 0, n = 0; lane < kLanes; ++lane) {
        const bool other = set >> lane & 1;
        for (std::size_t b = 0; b < sizeof(Word); ++b) {
          to_place[set][lane * sizeof(Word) + b] =
              static_cast<std::uint8_t>(other ? n * sizeof(Word) + b : 0x80);
          if (other)
            to_front[set][n * sizeof(Word) + b] =
                static_cast<std::uint8_t>(lane * sizeof(Word) + b);
        }
        n += other ? 1 : 0;
      }
  }
};
template <typename Word>
inline constexpr ShuffleTables<Word> kShuffle;

// The specification; also what vectors leave over. `others` moves on.
template <typename Word>
void split_scalar(const Word* words, std::size_t first, std::size_t num_words, std::uint8_t* masks,
                  Word*& others) noexcept {
  for (std::size_t i = first; i < num_words; ++i) {
    std::uint8_t& mask = masks[i / 8];
    if (i % 8 == 0) mask = 0;
    if (words[i] == 0) continue;
    mask = static_cast<std::uint8_t>(mask | 1u << i % 8);
    *others++ = words[i];
  }
}

template <typename Word>
void merge_scalar(const std::uint8_t* masks, const Word* others, Word* words, std::size_t first,
                  std::size_t num_words) noexcept {
  for (std::size_t i = first; i < num_words; ++i)
    words[i] = masks[i / 8] >> i % 8 & 1 ? *others++ : Word{0};
}

}  // namespace slimgrad::kernels::nonzeros
#endif  // SLIMGRAD_KERNELS_NONZEROS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels::nonzeros::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole masks only; `others` moves on. Returns how many words that was.
template <typename Word>
std::size_t split([[maybe_unused]] const Word* words, [[maybe_unused]] std::size_t num_words,
                  [[maybe_unused]] std::uint8_t* masks, [[maybe_unused]] Word*& others) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  constexpr std::size_t kLanes = 16 / sizeof(Word);
  const hn::FixedTag<Word, kLanes> d;
  const hn::FixedTag<std::uint8_t, 16> bytes;
  Word* to = others;
  const std::size_t whole = num_words / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) {
    std::uint32_t mask = 0;
    for (std::size_t k = 0; k < 8; k += kLanes) {
      const auto x = hn::LoadU(d, words + i + k);
      std::uint8_t zeros[8];  // Highway writes one byte and wants room for eight
      hn::StoreMaskBits(d, hn::Eq(x, hn::Zero(d)), zeros);
      const std::uint32_t set = ~std::uint32_t{zeros[0]} & ((1u << kLanes) - 1);
      const auto shuffle = hn::Load(bytes, kShuffle<Word>.to_front[set].data());
      hn::StoreU(hn::BitCast(d, hn::TableLookupBytes(hn::BitCast(bytes, x), shuffle)), d, to);
      to += hwy::PopCount(set);
      mask |= set << k;
    }
    masks[i / 8] = static_cast<std::uint8_t>(mask);
  }
  others = to;
  return whole;
#endif
}

template <typename Word>
std::size_t merge([[maybe_unused]] const std::uint8_t* masks, [[maybe_unused]] const Word*& others,
                  [[maybe_unused]] Word* words, [[maybe_unused]] std::size_t num_words) {
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  constexpr std::size_t kLanes = 16 / sizeof(Word);
  const hn::FixedTag<Word, kLanes> d;
  const hn::FixedTag<std::uint8_t, 16> bytes;
  const Word* from = others;
  const std::size_t whole = num_words / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8)
    for (std::size_t k = 0; k < 8; k += kLanes) {
      const std::uint32_t set = masks[i / 8] >> k & ((1u << kLanes) - 1);
      const auto shuffle = hn::Load(bytes, kShuffle<Word>.to_place[set].data());
      const auto x = hn::BitCast(bytes, hn::LoadU(d, from));
      hn::StoreU(hn::BitCast(d, hn::TableLookupBytesOr0(x, shuffle)), d, words + i + k);
      from += hwy::PopCount(set);
    }
  others = from;
  return whole;
#endif
}

std::size_t split2(const std::uint16_t* words, std::size_t num_words, std::uint8_t* masks,
                   std::uint16_t*& others) {
  return split(words, num_words, masks, others);
}
std::size_t split4(const std::uint32_t* words, std::size_t num_words, std::uint8_t* masks,
                   std::uint32_t*& others) {
  return split(words, num_words, masks, others);
}
std::size_t merge2(const std::uint8_t* masks, const std::uint16_t*& others, std::uint16_t* words,
                   std::size_t num_words) {
  return merge(masks, others, words, num_words);
}
std::size_t merge4(const std::uint8_t* masks, const std::uint32_t*& others, std::uint32_t* words,
                   std::size_t num_words) {
  return merge(masks, others, words, num_words);
}

}  // namespace slimgrad::kernels::nonzeros::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace nonzeros {
HWY_EXPORT(split2);
HWY_EXPORT(split4);
HWY_EXPORT(merge2);
HWY_EXPORT(merge4);

template <typename Word, class Split>
std::size_t split_all(Split split, const void* words, std::size_t num_words, std::uint8_t* masks,
                      void* others) noexcept {
  const auto* const from = static_cast<const Word*>(words);
  auto* const begin = static_cast<Word*>(others);
  Word* to = begin;
  const std::size_t done = use_scalar() ? 0 : split(from, num_words, masks, to);
  split_scalar(from, done, num_words, masks, to);
  return static_cast<std::size_t>(to - begin);
}

template <typename Word, class Merge>
void merge_all(Merge merge, const std::uint8_t* masks, const void* others, void* words,
               std::size_t num_words) noexcept {
  const auto* from = static_cast<const Word*>(others);
  auto* const to = static_cast<Word*>(words);
  const std::size_t done = use_scalar() ? 0 : merge(masks, from, to, num_words);
  merge_scalar(masks, from, to, done, num_words);
}
}  // namespace nonzeros

std::size_t split_nonzeros(const void* words, std::size_t num_words, std::size_t width,
                           std::uint8_t* masks, void* others) noexcept {
  using namespace nonzeros;
  if (width == 2)
    return split_all<std::uint16_t>(HWY_DYNAMIC_DISPATCH(split2), words, num_words, masks, others);
  return split_all<std::uint32_t>(HWY_DYNAMIC_DISPATCH(split4), words, num_words, masks, others);
}

void merge_nonzeros(const std::uint8_t* masks, const void* others, std::size_t width, void* words,
                    std::size_t num_words) noexcept {
  using namespace nonzeros;
  if (width == 2)
    return merge_all<std::uint16_t>(HWY_DYNAMIC_DISPATCH(merge2), masks, others, words, num_words);
  merge_all<std::uint32_t>(HWY_DYNAMIC_DISPATCH(merge4), masks, others, words, num_words);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
