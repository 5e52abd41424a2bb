// Which elements of a large array to look at: one from each of m equal strata, at a place in the
// stratum that a hash of (key, stratum) gives.
//
// A fixed stride would do no better and can do much worse: if it shares a factor with the number of
// channels it sees only some of them (achieved sparsities from 0.06 to 0.99 were seen). Every
// element has the same chance, so means over the sample are unbiased over keys, and strata make
// them no noisier than independent draws.
#ifndef SLIMGRAD_KERNELS_MEASURE_STRATIFIED_SAMPLE_H_
#define SLIMGRAD_KERNELS_MEASURE_STRATIFIED_SAMPLE_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include <slimgrad/seed.h>

namespace slimgrad::kernels {

class StratifiedSample {
 public:
  // At most `wanted` of `num_values` elements; all of them if there are no more. As many as make
  // the strata whole numbers long, but for a remainder spread over them: from strata of one and of
  // two elements alternately, some elements would come twice as often as others.
  constexpr StratifiedSample(std::uint64_t num_values, std::uint64_t wanted, std::uint64_t key)
      : num_values_(num_values),
        size_(num_values <= wanted ? num_values
                                   : num_values / ((num_values + wanted - 1) / wanted)),
        fraction_bits_(std::min(32, std::countl_zero(num_values))),
        stride_(size_ == 0 ? 0 : (num_values << fraction_bits_) / size_),
        key_(mix_bits(key)) {}

  constexpr std::uint64_t size() const { return size_; }

  // REQUIRES: i < size(). Ascending in i.
  constexpr std::uint64_t position(std::uint64_t i) const {
    const std::uint64_t hash = hash_of(i / 2);
    return place(start_of(i), start_of(i + 1), i % 2 == 0 ? hash : hash >> 32);
  }

  // Calls visit(i, position(i)) for i from first to last - 1, three times as fast: the two strata
  // of a pair share a hash, and neighbours a border. There are some 10^4 of these in every layer of
  // every step.
  template <typename Visit>
  void visit(std::uint64_t first, std::uint64_t last, const Visit& visit) const {
    std::uint64_t i = first;
    if (i % 2 != 0 && i < last) visit(i, position(i)), ++i;
    // The last stratum ends where the array does, which start_of() knows and a sum does not.
    const std::uint64_t end = std::min(last, size_ - 1);
    std::uint64_t sum = i * stride_;
    for (; i + 2 <= end; i += 2, sum += 2 * stride_) {
      const std::uint64_t hash = hash_of(i / 2);
      const std::uint64_t start = sum >> fraction_bits_;
      const std::uint64_t middle = (sum + stride_) >> fraction_bits_;
      visit(i, place(start, middle, hash));
      visit(i + 1, place(middle, (sum + 2 * stride_) >> fraction_bits_, hash >> 32));
    }
    for (; i < last; ++i) visit(i, position(i));
  }

 private:
  constexpr std::uint64_t hash_of(std::uint64_t pair) const { return mix_bits(key_ ^ pair); }

  // The upper half of the product is uniform in [0, end - start) to one in 2^32, and unlike a
  // remainder costs no division.
  static constexpr std::uint64_t place(std::uint64_t start, std::uint64_t end, std::uint64_t hash) {
    return start + ((hash & 0xffffffffu) * (end - start) >> 32);
  }

  // Strictly ascending, since the stride is at least one.
  constexpr std::uint64_t start_of(std::uint64_t i) const {
    return i == size_ ? num_values_ : i * stride_ >> fraction_bits_;
  }

  std::uint64_t num_values_, size_;
  int fraction_bits_;
  std::uint64_t stride_;  // times 2^fraction_bits, rounded down: the last stratum takes the rest
  std::uint64_t key_;
};

}  // namespace slimgrad::kernels

#endif  // SLIMGRAD_KERNELS_MEASURE_STRATIFIED_SAMPLE_H_
