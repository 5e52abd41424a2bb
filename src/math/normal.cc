#include "math/normal.h"

#include <cmath>

namespace slimgrad {

double normal_quantile(double p) {
  return normal_quantile(p, [](double x) { return std::sqrt(x); });
}

}  // namespace slimgrad
