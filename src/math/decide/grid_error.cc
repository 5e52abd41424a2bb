#include "math/decide/grid_error.h"

namespace slimgrad {

HistogramGridError::HistogramGridError(const FloatFormat& format, const LogHistogram& histogram,
                                       ErrorKind kind)
    : grid_(grid_of(format)), kind_(kind) {
  for (int j = 0; j < kBinsAnOctave; ++j) {
    const OctaveBin bin(j, grid_.mantissa_bits, kind);
    for (int field = 0; field < OctaveErrors::kOctaves; ++field) {
      const double count = static_cast<double>(histogram.counts[field * kBinsAnOctave + j]);
      if (count != 0) octaves_[field].add(field, count, bin, kind);
    }
  }
}

double HistogramGridError::at(int scale_exponent) const {
  return error_at_scale(octaves_, grid_, scale_exponent, kind_);
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
