// What quantizing or pruning an array saw and did. Plain data.
#ifndef SLIMGRAD_APPLY_COUNTS_H_
#define SLIMGRAD_APPLY_COUNTS_H_

#include <cstdint>

namespace slimgrad {

struct ApplyCounts {
  std::uint64_t zeros = 0;         // in the result, those that were zero before included
  std::uint64_t at_threshold = 0;  // set to +-threshold by pruning
  std::uint64_t nonfinite = 0;     // NaN and Inf

  ApplyCounts& operator+=(const ApplyCounts& other) {
    zeros += other.zeros;
    at_threshold += other.at_threshold;
    nonfinite += other.nonfinite;
    return *this;
  }
  bool operator==(const ApplyCounts&) const = default;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_APPLY_COUNTS_H_
