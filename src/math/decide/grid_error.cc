#include "math/decide/grid_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/portable_math.h"

namespace slimgrad {
namespace {

constexpr int kBinsAnOctave = 8;
constexpr int kFloatBias = 127;

// A stretch of one octave, in units of its power of two, that rounds to `value`.
struct Cell {
  double low, high, value;
};

// The cells of [1, 2): halves between neighbours, each half ending at its own grid value. At the
// top of the grid there is no neighbour at 2 to round to.
std::vector<Cell> octave_cells(int mantissa_bits, bool is_top) {
  std::vector<Cell> cells;
  const int steps = 1 << mantissa_bits;
  for (int m = 0; m < steps; ++m) {
    const double left = 1 + static_cast<double>(m) / steps;
    const double right = 1 + static_cast<double>(m + 1) / steps;
    const double middle = (left + right) / 2;
    cells.push_back({left, middle, left});
    cells.push_back({middle, right, is_top && m + 1 == steps ? left : right});
  }
  return cells;
}

// Integral of the error over [low, high] against the density 1/x. The value does not lie inside.
double cell_integral(const Cell& cell, double low, double high, ErrorKind kind) {
  const double v = cell.value, log_ratio = portable_log(high / low);
  if (kind == ErrorKind::kSquared)  // of (v - x)^2 / x
    return v * v * log_ratio - 2 * v * (high - low) + (high - low) * (high + low) / 2;
  return std::abs(v / low - v / high - log_ratio);  // of (v - x) / x^2, which has one sign
}

double bin_error(const std::vector<Cell>& cells, double low, double high, ErrorKind kind) {
  double sum = 0;
  for (const Cell& cell : cells) {
    const double from = std::max(low, cell.low), to = std::min(high, cell.high);
    if (from < to) sum += cell_integral(cell, from, to, kind);
  }
  return sum / portable_log(high / low);
}

}  // namespace

HistogramGridError::HistogramGridError(const FloatFormat& format, const LogHistogram& histogram,
                                       ErrorKind kind)
    : min_exponent_(format.min_exponent()),
      max_exponent_(format.max_exponent()),
      top_mantissa_(2 - std::ldexp(1.0, -format.mantissa_bits())),
      kind_(kind) {
  const auto covered_cells = octave_cells(format.mantissa_bits(), false);
  const auto top_cells = octave_cells(format.mantissa_bits(), true);
  const bool squared = kind == ErrorKind::kSquared;
  for (int j = 0; j < kBinsAnOctave; ++j) {
    const double low = 1 + j / 8.0, high = 1 + (j + 1) / 8.0;
    const double width = portable_log(high / low);
    const double covered = bin_error(covered_cells, low, high, kind);
    const double top = bin_error(top_cells, low, high, kind);
    const double mean = (high - low) / width;
    const double mean_square = mean * (high + low) / 2;
    const double mean_inverse = (1 / low - 1 / high) / width;
    for (int field = 0; field < kOctaves; ++field) {
      const double count = static_cast<double>(histogram.counts[field * kBinsAnOctave + j]);
      if (count == 0) continue;
      // A subnormal magnitude is below the smallest normal one, which is error enough to know.
      const double unit = std::ldexp(1.0, std::max(field, 1) - kFloatBias);
      const double scaled = squared ? count * unit * unit : count;
      Octave& octave = octaves_[field];
      octave.underflow += squared ? scaled * mean_square : count;
      octave.covered += scaled * covered;
      octave.top += scaled * top;
      octave.saturated_0 += count;
      octave.saturated_1 += squared ? count * unit * mean : count * mean_inverse / unit;
      octave.saturated_2 += squared ? scaled * mean_square : 0;
    }
  }
}

double HistogramGridError::at(int scale_exponent) const {
  const int bottom_field = min_exponent_ + scale_exponent + kFloatBias;
  const int top_field = max_exponent_ + scale_exponent + kFloatBias;
  const double top = std::ldexp(top_mantissa_, max_exponent_ + scale_exponent);
  double sum = 0;
  for (int field = 0; field < kOctaves; ++field) {
    const Octave& octave = octaves_[field];
    if (octave.saturated_0 == 0) continue;
    if (field < bottom_field || field == 0)
      sum += octave.underflow;
    else if (field < top_field)
      sum += octave.covered;
    else if (field == top_field)
      sum += octave.top;
    else if (kind_ == ErrorKind::kSquared)  // (x - top)^2
      sum += octave.saturated_2 - 2 * top * octave.saturated_1 + top * top * octave.saturated_0;
    else  // 1 - top / x
      sum += octave.saturated_0 - top * octave.saturated_1;
  }
  return sum;
}

int HistogramGridError::best_scale_exponent(int first, int last) const {
  int best = first;
  double least = at(first);
  for (int exponent = first + 1; exponent <= last; ++exponent) {
    const double error = at(exponent);
    if (error < least) {
      least = error;
      best = exponent;
    }
  }
  return best;
}

}  // namespace slimgrad
