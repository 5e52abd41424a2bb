// One pass over an array: TensorStats.
//
// The result is a function of the values and their order alone, never of how the work was split.
// Up to kFullHistogramValues values the histogram counts everything; of larger arrays it is a
// sample that is spread over the whole array by a fixed pseudo-random rule, and everything else in
// TensorStats is still exact. What sampling costs is derived in src/codecs/measure.cc.
#ifndef SLIMGRAD_MEASURE_H_
#define SLIMGRAD_MEASURE_H_

#include <cstdint>
#include <span>

#include <slimgrad/tensor_stats.h>

namespace slimgrad {

TensorStats measure(std::span<const float> values);

}  // namespace slimgrad

#endif  // SLIMGRAD_MEASURE_H_
