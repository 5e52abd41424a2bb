// How a tensor that backward keeps is stored: 8, 4 or 2 bits a value, and 4 bytes a group.
//
// Values are taken in the order in which they lie in memory. They are cut into blocks of 512, whose
// codes lie as in formats/fewbit.h: 32 rows of 16 columns, a column's codes in `bits` words. A
// group is 16 to 512 neighbours, a power of two, so that it is made of whole rows and lies in one
// block.
//
//     words   |codes of block 0| ... |codes of the last block|a scale for every group|bad|
//
// The last block is as long as all others; the codes behind the end are those of the last value.
// `bad` counts groups that hold NaN or Inf, or differences that float32 cannot hold.
//
// **A scale** is one word: the lowest level in bfloat16, rounded down, in its lower half, and the
// step in bfloat16, rounded up, in its upper half. Codes are computed with the rounded ones: with
// others the ends would be clipped, and clipping is a bias. A level is lowest + code * step; the
// product is exact in float32 (8 bits times 8), so that a fused multiply-add gives the same bits.
//
// **Zeros.** A group of zeros and positive numbers is the output of a ReLU, whose backward asks
// where it is positive, and zeros are much of it. There the sign bit of the step is set, code 0
// means zero and code c means lowest + (c - 1) * step, where `lowest` is that of the positive
// numbers: which values are zero is exact at every width.
//
// A bad group has the scale kBadScale and codes 0, and all of it comes back as NaN.
//
// **Rounding.** y = (x - lowest) / step is cut to 16 binary digits; the code is the upper part of
// y + r / 2^16, with r from the generator (base/rng.h) or 1/2. Its mean is within 2^-16 of y.
#ifndef SLIMGRAD_FORMATS_SAVED_H_
#define SLIMGRAD_FORMATS_SAVED_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "formats/fewbit.h"

namespace slimgrad::saved {

inline constexpr std::size_t kBlockValues = fewbit::kBlockValues;
inline constexpr std::size_t kLeastGroup = fewbit::kNumColumns;
inline constexpr std::size_t kLargestGroup = kBlockValues;
inline constexpr std::size_t kMostGroups = kBlockValues / kLeastGroup;  // of a block

constexpr bool is_width(std::int64_t bits) { return bits == 8 || bits == 4 || bits == 2; }
constexpr bool is_group(std::int64_t size) {
  return size >= static_cast<std::int64_t>(kLeastGroup) &&
         size <= static_cast<std::int64_t>(kLargestGroup) && (size & (size - 1)) == 0;
}

struct Format {
  int bits = 8;
  std::size_t group = 256;
  bool is_stochastic = true;
};

constexpr std::size_t code_words(std::size_t num_values, int bits) {
  return fewbit::num_blocks(num_values) * fewbit::block_words(bits);
}
constexpr std::size_t num_groups(std::size_t num_values, std::size_t group) {
  return num_values / group + (num_values % group != 0);
}
constexpr std::size_t num_words(std::size_t num_values, const Format& format) {
  return code_words(num_values, format.bits) + num_groups(num_values, format.group) + 1;
}

inline constexpr std::uint32_t kZeroFlag = 0x80000000u;
inline constexpr std::uint32_t kBadScale = 0x00007fc0u;
inline constexpr std::uint32_t kOne = 0x10000u;  // of y
// Smaller steps have no use, and their reciprocals no place in float32.
inline constexpr float kLeastStep = 0x1p-100f;

// What packing needs of a scale.
struct Scale {
  std::uint32_t word = kBadScale;
  float lowest = 0.0f;
  float per_step = 0.0f;    // 2^16 / step
  std::uint32_t first = 0;  // the code of `lowest`, times kOne
  constexpr bool is_bad() const { return word == kBadScale; }
};

namespace internal {
// To bfloat16, as the upper half of a float32. Normal numbers only: what is smaller is 0, or the
// negative normal number next to it.
constexpr std::uint32_t rounded_down(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const bool is_negative = bits >> 31 != 0;
  if ((bits & 0x7fffffffu) < 0x00800000u)
    return is_negative && (bits & 0x7fffffffu) != 0 ? 0x80800000u : 0;
  return (is_negative ? bits + 0xffffu : bits) & 0xffff0000u;
}
// REQUIRES: x >= kLeastStep.
constexpr std::uint32_t rounded_up(float x) {
  return (std::bit_cast<std::uint32_t>(x) + 0xffffu) & 0xffff0000u;
}
constexpr bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) < 0x7f800000u;
}
}  // namespace internal

// The scale of a group of finite values. least_positive: of those that are not zero; it is looked
// at where the minimum is 0 and the maximum is not.
constexpr Scale make_scale(float minimum, float maximum, float least_positive, int bits) {
  const bool has_zeros = minimum == 0.0f && maximum > 0.0f;
  const std::uint32_t low = internal::rounded_down(has_zeros ? least_positive : minimum);
  const float lowest = std::bit_cast<float>(low);
  const auto num_codes = static_cast<float>(1 << bits);
  const float num_steps = has_zeros ? num_codes - 2.0f : num_codes - 1.0f;
  // Constants, where the width is one.
  const float part = has_zeros ? 1.0f / (num_codes - 2.0f) : 1.0f / (num_codes - 1.0f);
  const float range = maximum - lowest;
  if (!internal::is_finite(range)) return {};
  const std::uint32_t step_bits = internal::rounded_up(std::max(range * part, kLeastStep));
  const float step = std::bit_cast<float>(step_bits);
  if (!internal::is_finite(step) || !internal::is_finite(lowest + num_steps * step)) return {};
  return {.word = low >> 16 | step_bits | (has_zeros ? kZeroFlag : 0),
          .lowest = lowest,
          .per_step = 0x1p16f / step,
          .first = has_zeros ? kOne : 0};
}

// What make_scale() asks of a group. Ranges are joined in any order: of zeros the sign may differ,
// which no scale sees.
struct Range {
  float minimum, maximum;
  float least_positive;  // 0: there is none
  bool is_finite;

  constexpr explicit Range(float x)
      : minimum(x),
        maximum(x),
        least_positive(x > 0.0f ? x : 0.0f),
        is_finite(internal::is_finite(x)) {}
  constexpr void join(const Range& other) {
    minimum = std::min(minimum, other.minimum);
    maximum = std::max(maximum, other.maximum);
    least_positive = lesser_positive(least_positive, other.least_positive);
    is_finite = is_finite && other.is_finite;
  }
  static constexpr float lesser_positive(float x, float y) {
    return y > 0.0f && !(x > 0.0f && x <= y) ? y : x;
  }
  constexpr Scale scale(int bits) const {
    return is_finite ? make_scale(minimum, maximum, least_positive, bits) : Scale{};
  }
};

// The code of x. r: 16 random bits, or 2^15 for the nearest. REQUIRES: x belongs to the group.
constexpr std::uint32_t code_of(float x, const Scale& scale, std::uint32_t r, int bits) {
  if (scale.is_bad() || (scale.first != 0 && x == 0.0f)) return 0;
  const auto y = static_cast<std::uint32_t>((x - scale.lowest) * scale.per_step);
  return std::min((y + r + scale.first) / kOne, (1u << bits) - 1);
}

// What a scale says to the code that unpacks.
struct Levels {
  float lowest, step;
  bool has_zeros;
  constexpr explicit Levels(std::uint32_t word)
      : lowest(std::bit_cast<float>(word << 16)),
        step(std::bit_cast<float>(word & 0x7fff0000u)),
        has_zeros((word & kZeroFlag) != 0) {}
  // Before it is rounded to the type of the array, and brought into its range.
  constexpr float at(std::uint32_t code) const {
    if (!has_zeros) return lowest + static_cast<float>(code) * step;
    return code == 0 ? 0.0f : lowest + static_cast<float>(code - 1) * step;
  }
};

// Which of a block's groups a row belongs to. By a shift: a division for every row takes as long as
// all that is done with its values.
class RowGroups {
 public:
  constexpr explicit RowGroups(std::size_t group)
      : shift_(std::countr_zero(group / fewbit::kNumColumns)) {}
  constexpr std::size_t of(std::size_t row) const { return row >> shift_; }
  constexpr std::size_t rows() const { return std::size_t{1} << shift_; }

 private:
  int shift_;
};

// One code, read from the words of its block; fewbit::code_at for the widths here.
constexpr std::uint32_t code_at(const std::uint32_t* block, std::size_t element, int bits) {
  const std::size_t row = element / fewbit::kNumColumns, rows = fewbit::rows_per_word(bits);
  const std::uint32_t word =
      block[row / rows * fewbit::kNumColumns + element % fewbit::kNumColumns];
  return word >> static_cast<std::size_t>(bits) * (row % rows) & ((1u << bits) - 1);
}

static_assert(num_words(512, {.bits = 8, .group = 256}) == 128 + 2 + 1);
static_assert(num_words(513, {.bits = 2, .group = 32}) == 2 * 32 + 17 + 1);

}  // namespace slimgrad::saved

#endif  // SLIMGRAD_FORMATS_SAVED_H_
