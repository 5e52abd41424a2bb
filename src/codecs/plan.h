// From checked arguments to the numbers that the apply kernels need.
#ifndef SLIMGRAD_CODECS_PLAN_H_
#define SLIMGRAD_CODECS_PLAN_H_

#include <cstdint>
#include <string_view>

#include <slimgrad/quantize.h>

#include "kernels/apply_plan.h"

namespace slimgrad {

enum class ValueType { kFloat32, kBFloat16, kFloat16 };

template <typename T>
inline constexpr ValueType kValueType = ValueType::kFloat32;
template <>
inline constexpr ValueType kValueType<BFloat16Bits> = ValueType::kBFloat16;
template <>
inline constexpr ValueType kValueType<Float16Bits> = ValueType::kFloat16;

// The largest finite number.
double largest_of(ValueType type);

// Throws InvalidArgument, in the name of `op`, for a scale that is not a positive, finite, normal
// float32.
float checked_scale(std::string_view op, double scale);

// Throws InvalidArgument, in the name of `op`, for a scale out of range.
kernels::Grid make_grid(std::string_view op, const Quantizer& quantizer, ValueType type);

// The threshold as a number of the type. Throws InvalidArgument, in the name of `op`, if it is
// negative, not finite or too large for the type.
float make_threshold(std::string_view op, double threshold, ValueType type);

}  // namespace slimgrad

#endif  // SLIMGRAD_CODECS_PLAN_H_
