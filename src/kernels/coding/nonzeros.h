// Taking the zeros out of an array of numbers: eight positions become one mask byte, and only the
// others stay. What kernels/coding/zero_mask.h does for symbols, for words of 16 and 32 bits.
//
// Bit k of mask m says that word 8 m + k is not 0; bits after the last word are zero. A word is
// zero if all its bits are: -0.0 stays. About 10 GB/s of float32 either way.
// noexcept, no allocation, any thread; the same on every CPU.
#ifndef SLIMGRAD_KERNELS_CODING_NONZEROS_H_
#define SLIMGRAD_KERNELS_CODING_NONZEROS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace slimgrad::kernels {

// The vector code moves 16 bytes at a time: `others` needs this number of bytes more than it holds.
inline constexpr std::size_t kNonzerosSlack = 16;

// Returns how many words are not 0. REQUIRES: width, the bytes of a word, is 2 or 4; masks has
// (num_words + 7) / 8 bytes, others num_words * width + kNonzerosSlack.
std::size_t split_nonzeros(const void* words, std::size_t num_words, std::size_t width,
                           std::uint8_t* masks, void* others) noexcept;

// REQUIRES: as above, and others has as many words as the masks have ones, and the slack.
void merge_nonzeros(const std::uint8_t* masks, const void* others, std::size_t width, void* words,
                    std::size_t num_words) noexcept;

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_CODING_NONZEROS_H_
