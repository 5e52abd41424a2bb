// From checked arguments to the numbers that the apply kernels need, and to their call.
#ifndef SLIMGRAD_ARRAYS_APPLY_LOOP_TREATMENT_H_
#define SLIMGRAD_ARRAYS_APPLY_LOOP_TREATMENT_H_

#include <cstdint>
#include <span>
#include <string_view>

#include <slimgrad/apply.h>
#include <slimgrad/treatment.h>

#include "formats/value_types.h"
#include "kernels/apply/loop_treatment.h"

namespace slimgrad {

// Throws InvalidArgument, in the name of `op`, for a scale that is not a positive, finite, normal
// float32.
float checked_scale(std::string_view op, double scale);

// Throws InvalidArgument, in the name of `op`, for a scale out of range.
kernels::Grid make_grid(std::string_view op, const Quantizer& quantizer, DType type);

// The threshold as a number of the type. Throws InvalidArgument, in the name of `op`, if it is
// negative, not finite or too large for the type.
float make_threshold(std::string_view op, double threshold, DType type);

// A treatment as the kernels want it, for values of one type: made once for all pieces of an array.
// Throws InvalidArgument as the two above.
template <typename T>
kernels::LoopTreatment loop_treatment(std::string_view op, const Treatment& treatment) {
  kernels::LoopTreatment made;
  made.threshold = make_threshold(op, treatment.threshold, kDType<T>);
  made.quantizes = treatment.quantizer.has_value();
  if (made.quantizes) made.grid = make_grid(op, *treatment.quantizer, kDType<T>);
  made.seed = treatment.seed;
  return made;
}

// slimgrad::apply() with errors in the name of `op`.
template <typename T>
ApplyCounts apply_as(std::string_view op, const Treatment& treatment, std::span<const T> in,
                     std::span<T> out, std::uint64_t first_index);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_APPLY_LOOP_TREATMENT_H_
