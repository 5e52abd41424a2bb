// Errors of rounding to a format's grid on a histogram, bin by bin and octave by octave: the
// `constexpr` rules behind grid_error.h, which CPU and devices share. Values are log-uniform inside
// a bin, which makes every integral closed.
#ifndef SLIMGRAD_MATH_DECIDE_GRID_RULES_H_
#define SLIMGRAD_MATH_DECIDE_GRID_RULES_H_

#include <algorithm>

#include <slimgrad/tensor_stats.h>
#include <slimgrad/treatment.h>

#include "base/portable_math.h"
#include "formats/format_grid.h"

namespace slimgrad {

enum class ErrorKind {
  kSquared,   // (x_q - x)^2
  kRelative,  // |x_q - x| / |x|
};

inline constexpr int kBinsAnOctave = 8;

// ---- any scale, rounding and underflow ---------------------------------------------------------

// Integrals over [p, q] against the density 1/x, in units of the scale, of the error of what is
// rounded to v, and of what is rounded stochastically to l or u.
//
// |v - x| / x^2 has one sign, because v does not lie inside; x - l and u - x meet with the
// probabilities (u - x) / (u - l) and (x - l) / (u - l), so that the expected magnitude of the
// error is 2 (x - l)(u - x) / (u - l), and that of its square (x - l)(u - x).
constexpr double error_to(double v, double p, double q, ErrorKind kind) {
  const double log_ratio = portable_log(q / p);
  if (kind == ErrorKind::kSquared) return (q - p) * ((q + p) / 2 - 2 * v) + v * v * log_ratio;
  const double error = log_ratio - v * (1 / p - 1 / q);
  return error < 0 ? -error : error;
}

constexpr double error_between(double l, double u, double p, double q, ErrorKind kind) {
  const double log_ratio = portable_log(q / p);
  if (kind == ErrorKind::kSquared) return (q - p) * (l + u - (q + p) / 2) - l * u * log_ratio;
  return 2 / (u - l) * ((l + u) * log_ratio - (q - p) - l * u * (1 / p - 1 / q));
}

// The error of the values of a bin, in units of the scale.
//
// Inside the grid's range the cells of an octave are those of the octave below, doubled: so are the
// errors, and relative errors are the same. Hence a bin that is covered takes the error of another
// one at the same place in its octave: of the first that is covered and not empty.
struct BinErrors {
  static constexpr int kFirstNormalBin = kBinsAnOctave;  // before it lie the subnormals

  FormatGrid grid;
  double scale = 1;
  Rounding rounding = Rounding::kNearest;
  Underflow underflow = Underflow::kZero;
  ErrorKind kind = ErrorKind::kRelative;

  struct Covered {
    double error = 0, low = 0;
  };

  constexpr double low(int bin) const { return LogHistogram::lower_edge(bin) / scale; }
  constexpr double high(int bin) const { return LogHistogram::lower_edge(bin + 1) / scale; }
  constexpr bool covers(int bin) const {
    return bin >= kFirstNormalBin && !(low(bin) < grid.smallest() || high(bin) > grid.largest());
  }

  // What a covered bin gives to others.
  constexpr Covered covered(int bin) const {
    const double low = this->low(bin), high = this->high(bin);
    return {over(low, high) * (1 / portable_log(high / low)), low};
  }
  // The error of `count` values. `known`: that of the first bin at this place, if it is covered.
  constexpr double of_bin(int bin, double count, const Covered& known) const {
    // Below every grid value, and so small that the square is nothing.
    if (bin < kFirstNormalBin)
      return kind == ErrorKind::kRelative ? count * (underflow == Underflow::kZero ? 1 : 2) : 0;
    const double low = this->low(bin), high = this->high(bin);
    if (!covers(bin)) return count * over(low, high) * (1 / portable_log(high / low));
    const double ratio = kind == ErrorKind::kSquared ? low / known.low : 1;
    return count * known.error * ratio * ratio;
  }
  constexpr double total(double sum) const {
    return kind == ErrorKind::kSquared ? sum * scale * scale : sum;
  }

 private:
  // Over [p, q], against the density 1/x.
  constexpr double over(double p, double q) const {
    double sum = 0;
    const double smallest = grid.smallest();
    if (p < smallest) {
      const double end = std::min(q, smallest);
      // Whatever the rounding: also just below the smallest value, where that one is nearest.
      sum += underflow == Underflow::kZero ? error_to(0, p, end, kind)
                                           : error_between(0, smallest, p, end, kind);
      p = end;
    }
    for (int above = grid.num_up_to(p); p < q && above < grid.size(); ++above) {
      const double l = grid.value(above - 1), u = grid.value(above), end = std::min(q, u);
      sum += inside(l, u, p, end);
      p = end;
    }
    if (p < q) sum += error_to(grid.largest(), p, q, kind);
    return sum;
  }
  // REQUIRES: l <= p < q <= u.
  constexpr double inside(double l, double u, double p, double q) const {
    if (rounding == Rounding::kStochastic) return error_between(l, u, p, q, kind);
    const double mean = (l + u) / 2, middle = mean < p ? p : q < mean ? q : mean;
    return (p < middle ? error_to(l, p, middle, kind) : 0) +
           (middle < q ? error_to(u, middle, q, kind) : 0);
  }
};

// ---- powers of two as scales, rounding to nearest ----------------------------------------------

// A stretch of one octave, in units of its power of two, that rounds to `value`.
struct Cell {
  double low, high, value;
};

// Integral of the error over [low, high] against the density 1/x. The value does not lie inside.
constexpr double cell_integral(const Cell& cell, double low, double high, ErrorKind kind) {
  const double v = cell.value, log_ratio = portable_log(high / low);
  if (kind == ErrorKind::kSquared)  // of (v - x)^2 / x
    return v * v * log_ratio - 2 * v * (high - low) + (high - low) * (high + low) / 2;
  const double error = v / low - v / high - log_ratio;  // of (v - x) / x^2, which has one sign
  return error < 0 ? -error : error;
}

// What eight bins of an octave, the same in every octave, are worth: for bin j of it.
struct OctaveBin {
  double covered = 0, top = 0;  // errors, if the grid covers the octave, or ends with it
  double mean = 0, mean_square = 0, mean_inverse = 0;

  constexpr OctaveBin() = default;
  constexpr OctaveBin(int j, int mantissa_bits, ErrorKind kind) {
    const double low = 1 + j / 8.0, high = 1 + (j + 1) / 8.0;
    const double width = portable_log(high / low);
    covered = bin_error(mantissa_bits, false, low, high, kind);
    top = bin_error(mantissa_bits, true, low, high, kind);
    mean = (high - low) / width;
    mean_square = mean * (high + low) / 2;
    mean_inverse = (1 / low - 1 / high) / width;
  }

 private:
  // The cells of [1, 2): halves between neighbours, each half ending at its own grid value. At the
  // top of the grid there is no neighbour at 2 to round to.
  static constexpr double bin_error(int mantissa_bits, bool is_top, double low, double high,
                                    ErrorKind kind) {
    double sum = 0;
    const int steps = 1 << mantissa_bits;
    for (int m = 0; m < steps; ++m) {
      const double left = 1 + static_cast<double>(m) / steps;
      const double right = 1 + static_cast<double>(m + 1) / steps;
      const double middle = (left + right) / 2;
      sum += part({left, middle, left}, low, high, kind);
      sum += part({middle, right, is_top && m + 1 == steps ? left : right}, low, high, kind);
    }
    return sum / portable_log(high / low);
  }
  static constexpr double part(const Cell& cell, double low, double high, ErrorKind kind) {
    const double from = std::max(low, cell.low), to = std::min(high, cell.high);
    return from < to ? cell_integral(cell, from, to, kind) : 0;
  }
};

// By exponent field: the error of the octave's values if they underflow, if the grid covers the
// octave, if it is the grid's top octave; and their moments, for saturation from above.
struct OctaveErrors {
  static constexpr int kOctaves = 255;  // exponent fields of finite float32; 0 is the subnormals
  static constexpr int kFloatBias = 127;

  double underflow = 0, covered = 0, top = 0;
  double saturated_0 = 0, saturated_1 = 0, saturated_2 = 0;

  // `count` values of a bin of the octave `field`. In the order of the bins.
  constexpr void add(int field, double count, const OctaveBin& bin, ErrorKind kind) {
    const bool squared = kind == ErrorKind::kSquared;
    // A subnormal magnitude is below the smallest normal one, which is error enough to know.
    const double unit = power_of_two(std::max(field, 1) - kFloatBias);
    const double scaled = squared ? count * unit * unit : count;
    underflow += squared ? scaled * bin.mean_square : count;
    covered += scaled * bin.covered;
    top += scaled * bin.top;
    saturated_0 += count;
    saturated_1 += squared ? count * unit * bin.mean : count * bin.mean_inverse / unit;
    saturated_2 += squared ? scaled * bin.mean_square : 0;
  }
};

// The total error at scale 2^scale_exponent; octaves[field] for all of them.
template <class Octaves>
constexpr double error_at_scale(const Octaves& octaves, const FormatGrid& grid, int scale_exponent,
                                ErrorKind kind) {
  const int bottom_field = grid.min_exponent() + scale_exponent + OctaveErrors::kFloatBias;
  const int top_field = grid.max_exponent() + scale_exponent + OctaveErrors::kFloatBias;
  const double top =
      (2 - power_of_two(-grid.mantissa_bits)) * power_of_two(grid.max_exponent() + scale_exponent);
  double sum = 0;
  for (int field = 0; field < OctaveErrors::kOctaves; ++field) {
    const OctaveErrors& octave = octaves[field];
    if (octave.saturated_0 == 0) continue;
    if (field < bottom_field || field == 0)
      sum += octave.underflow;
    else if (field < top_field)
      sum += octave.covered;
    else if (field == top_field)
      sum += octave.top;
    else if (kind == ErrorKind::kSquared)  // (x - top)^2
      sum += octave.saturated_2 - 2 * top * octave.saturated_1 + top * top * octave.saturated_0;
    else  // 1 - top / x
      sum += octave.saturated_0 - top * octave.saturated_1;
  }
  return sum;
}

// Scales at which some value of the histogram meets the grid's top octave, or the one above it.
// The scale stays a normal float32.
struct ScaleExponents {
  int first = 0, last = 0;
};
constexpr ScaleExponents useful_scale_exponents(const FormatGrid& grid, int first_bin,
                                                int last_bin) {
  const int low = first_bin / kBinsAnOctave - OctaveErrors::kFloatBias;
  const int high = last_bin / kBinsAnOctave - OctaveErrors::kFloatBias;
  return {std::clamp(low - grid.max_exponent(), -126, 127),
          std::clamp(high + 1 - grid.max_exponent(), -126, 127)};
}

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_GRID_RULES_H_
