// Newton's method inside a bracket: quadratic where it works, bisection where it does not.
#ifndef SLIMGRAD_MATH_NEWTON_H_
#define SLIMGRAD_MATH_NEWTON_H_

#include <algorithm>
#include <cmath>

namespace slimgrad {

struct ValueAndSlope {
  double value, slope;
};

// The root in [low, high] of a function that is positive to the left of it and negative to the
// right; the end towards which the sign points if there is none. `function` maps u to its value and
// derivative there, and must be finite at both ends. Stops after a Newton step of at most
// `tolerance`: what is left then is about its square.
template <typename Function>
double falling_root(Function&& function, double start, double low, double high, double tolerance) {
  bool low_known = false;  // whether the sign at the end of the bracket has been seen
  bool high_known = false;
  double u = std::clamp(start, low, high);
  for (int i = 0; i < 200; ++i) {
    const ValueAndSlope at = function(u);
    if (at.value == 0) return u;
    if (at.value > 0) {
      if (u == high) return high;
      low = u;
      low_known = true;
    } else {
      if (u == low) return low;
      high = u;
      high_known = true;
    }
    const double step = -at.value / at.slope;
    if (at.slope < 0 && std::abs(step) <= tolerance) return std::clamp(u + step, low, high);
    // A step out of the bracket goes to its end if that may be the answer, else to the middle.
    double next = at.slope < 0 ? u + step : (low + high) / 2;
    if (!(next > low)) next = low_known ? (low + high) / 2 : low;
    if (!(next < high)) next = high_known ? (low + high) / 2 : high;
    if (next == u) return u;  // the bracket is down to neighbouring numbers
    u = next;
  }
  return u;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_NEWTON_H_
