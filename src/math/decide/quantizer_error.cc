#include <array>
#include <optional>

#include "math/decide/grid_error.h"

namespace slimgrad {

double quantizer_error(const Quantizer& quantizer, const LogHistogram& histogram, ErrorKind kind) {
  const BinErrors errors = {grid_of(quantizer.format), quantizer.scale, quantizer.rounding,
                            quantizer.underflow, kind};
  std::array<std::optional<BinErrors::Covered>, kBinsAnOctave> covered;
  double sum = 0;
  for (int bin = 0; bin < LogHistogram::kNumBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    auto& known = covered[bin % kBinsAnOctave];
    if (!known && errors.covers(bin)) known = errors.covered(bin);
    sum += errors.of_bin(bin, static_cast<double>(histogram.counts[bin]),
                         known.value_or(BinErrors::Covered{}));
  }
  return errors.total(sum);
}

}  // namespace slimgrad
