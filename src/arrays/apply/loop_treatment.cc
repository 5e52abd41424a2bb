#include "arrays/apply/loop_treatment.h"

#include <limits>

#include "base/check.h"
#include "kernels/apply/make_treatment.h"

namespace slimgrad {
float checked_scale(std::string_view op, double scale) {
  check(scale >= std::numeric_limits<float>::min() && scale <= std::numeric_limits<float>::max(),
        op, "a positive scale in the normal range of float32", scale);
  return static_cast<float>(scale);
}

kernels::Grid make_grid(std::string_view op, const Quantizer& quantizer, DType type) {
  const FormatGrid format = grid_of(quantizer.format);
  const float scale = checked_scale(op, quantizer.scale);
  const double top = kernels::largest_that_fits(format, scale, largest_of(type));
  check(top > 0, op, "a scale at which the type can hold the format's smallest value", scale);
  return kernels::grid_for(format, scale, top, quantizer.rounding, quantizer.underflow);
}

float make_threshold(std::string_view op, double threshold, DType type) {
  check(threshold >= 0 && threshold <= largest_of(type), op,
        "a threshold that is not negative and that the type can hold", threshold);
  return with_value_type(type, [&]<typename T>() { return kernels::threshold_for<T>(threshold); });
}

}  // namespace slimgrad
