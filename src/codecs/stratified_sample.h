// Which elements of a large array to look at: one from each of m equal strata, at a place in the
// stratum that a hash of (key, stratum) gives.
//
// A fixed stride would do no better and can do much worse: if it shares a factor with the number of
// channels it sees only some of them (achieved sparsities from 0.06 to 0.99 were seen). Every
// element has the same chance, so means over the sample are unbiased over keys, and strata make
// them no noisier than independent draws.
#ifndef SLIMGRAD_CODECS_STRATIFIED_SAMPLE_H_
#define SLIMGRAD_CODECS_STRATIFIED_SAMPLE_H_

#include <algorithm>
#include <cstdint>

#include "base/hash.h"

namespace slimgrad {

class StratifiedSample {
 public:
  // At most `wanted` of `num_values` elements; all of them if there are no more.
  StratifiedSample(std::uint64_t num_values, std::uint64_t wanted, std::uint64_t key)
      : num_values_(num_values),
        size_(std::min(num_values, wanted)),
        stride_(size_ == 0 ? 0 : static_cast<std::uint64_t>((Wide{num_values} << 32) / size_)),
        key_(mix_bits(key)) {}

  std::uint64_t size() const { return size_; }

  // REQUIRES: i < size(). Ascending in i.
  std::uint64_t position(std::uint64_t i) const {
    const std::uint64_t first = start_of(i), last = start_of(i + 1);
    // The upper half of the product is uniform in [0, last - first) to one in 2^32, and unlike a
    // remainder costs no division: there are some 10^5 of these in every layer of every step.
    return first + ((mix_bits(key_ ^ i) >> 32) * (last - first) >> 32);
  }

 private:
  __extension__ using Wide = unsigned __int128;

  // Strictly ascending, since the stride is at least one. In integers: conversions of 64-bit
  // numbers to double and back cost more than all the rest.
  std::uint64_t start_of(std::uint64_t i) const {
    return i == size_ ? num_values_ : static_cast<std::uint64_t>(Wide{i} * stride_ >> 32);
  }

  std::uint64_t num_values_, size_;
  std::uint64_t stride_;  // times 2^32, rounded down: the last stratum takes what is left
  std::uint64_t key_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_STRATIFIED_SAMPLE_H_
