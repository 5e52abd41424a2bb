// A block of a topk payload: which values are kept, what they are rounded to, and the bytes.
//
// Rounding. A kept value becomes the mean of those that share its code: its sign, and which of
// 2^(bits - 1) bins its magnitude is in. Bins are split at the mean of their magnitudes, from one,
// bits - 1 times. (SparseLoCo's levels are means as well, of four bins 1.5 standard deviations
// wide; where only a tail is kept these hold one sign each, so that the second bit says nothing.
// Its error is 1.4 to 3.7 times as large on gradients and on differences of weights: bench.topk.)
#ifndef SLIMGRAD_ARRAYS_CODING_TOPK_BLOCK_H_
#define SLIMGRAD_ARRAYS_CODING_TOPK_BLOCK_H_

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/code_tables.h"
#include "formats/topk.h"
#include "kernels/coding/largest.h"

namespace slimgrad {

struct TopkRule {
  int k, of, bits;
};

// What codes stand for, as bits of float32: no arithmetic of floats meets a subnormal here.
using TopkLevels = std::array<std::uint32_t, std::size_t{1} << kMaxTopkBits>;

// What a block of so many values takes at most.
std::size_t topk_block_bound(const TopkRule& rule, std::size_t num_values);

class TopkBlockEncoder {
 public:
  // Writes a block at `next`, which moves on. REQUIRES: the values are finite; room for
  // topk_block_bound() bytes.
  template <typename T>
  void put(std::span<const T> values, const TopkRule& rule, std::uint8_t*& next);
  // Makes the values of the last put() what a reader will get.
  template <typename T>
  void replace(T* values, std::size_t num_values) const;

 private:
  template <typename T>
  void select(std::span<const T> values, const TopkRule& rule);
  template <typename T>
  void round(std::span<const T> values, int bits);

  kernels::LargestScratch scratch_;
  std::vector<std::uint32_t> places_;
  std::vector<std::uint8_t> codes_;
  std::vector<double> magnitudes_;
  TopkLevels levels_ = {};
};

// The places and codes of a block, one after the other.
class TopkBlockDecoder {
 public:
  // `largest` is the largest number of the type, as bits of a float32.
  TopkBlockDecoder(std::span<const std::uint8_t> block, const TopkRule& rule,
                   std::size_t num_values, std::uint32_t largest);

  // Calls kept(place, level) for the values that are kept, in order. On a status other than kOk
  // some calls may have been made.
  template <typename Kept>
  DecodeStatus visit(const Kept& kept) {
    for (std::size_t i = 0; i < num_kept_; ++i) {
      std::uint32_t level = 0;
      if (!next(level)) return status_;
      kept(place_, level);
    }
    return end();
  }

 private:
  bool next(std::uint32_t& level);
  bool fail(DecodeStatus status);
  std::uint64_t peek() const;
  std::uint32_t take(int count);
  DecodeStatus end() const;

  TopkRule rule_;
  std::span<const std::uint8_t> bits_;  // behind the levels
  std::size_t num_values_, num_kept_ = 0;
  GolombCode code_{1};
  TopkLevels levels_ = {};
  DecodeStatus status_ = DecodeStatus::kOk;  // of what is in front of the bits, or of next()
  std::uint64_t used_ = 0;
  std::size_t place_ = 0, next_place_ = 0;
  std::size_t group_end_ = 0, left_of_group_ = 0;  // of the group of place_: what it may still have
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_TOPK_BLOCK_H_
