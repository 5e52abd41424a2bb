// The step of a uniform quantizer for a wanted size of the payload.
//
// The size is predicted block by block, as every block has a table of its own, from a sample of
// each (arrays/coding/rate_choice.cc says how large), or from one law for the whole tensor; what
// tables, states and headers take is counted in. The step is the root of predicted = wanted. When
// the payload is there, its size tells how wrong the prediction was, and corrected_step() uses
// that.
#ifndef SLIMGRAD_ARRAYS_CODING_RATE_CHOICE_H_
#define SLIMGRAD_ARRAYS_CODING_RATE_CHOICE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include <slimgrad/payload.h>

#include "math/coding/level_law.h"

namespace slimgrad {

class RateChoice {
 public:
  // Reads a sample of the values, which must be finite. `largest` is the largest magnitude, not 0;
  // `fixed_bytes` what the payload takes beside its blocks.
  // REQUIRES: info has type, shape, block_log2, rate, and, for a model, model_shape.
  RateChoice(const TensorView& tensor, const PayloadInfo& info, Rounding rounding, double largest,
             double fixed_bytes, double model_scale);

  float step() const { return step_; }
  // The step for another try, or nothing if the payload, of the last step, is as large as it was to
  // be. Nearly always one correction is enough; in the end the step that came nearest is taken.
  std::optional<float> corrected_step(std::uint64_t payload_bytes);

  // The payload at this step, in bytes: values at their entropy, and what comes with any step or
  // changes little: tables, states, header, index.
  struct Size {
    double coded, overhead;
  };
  Size predicted(double step) const;

 private:
  // Values of a block, or of the whole tensor, under one law.
  struct Part {
    BinnedLaw law;       // of a sample
    double num_sampled;  // of it
    double num_values;
  };
  double charged(double overhead) const;
  std::optional<float> finish_with(float step);
  float solve(double factor) const;

  Rounding rounding_;
  double smallest_step_, largest_step_, start_step_;
  double wanted_bytes_, fixed_bytes_, num_values_;
  std::vector<Part> parts_;
  double model_shape_ = 0, model_scale_ = 0;  // of a law for the whole tensor, and
  double zero_share_ = 0;                     // the share of zeros beside it
  float step_ = 1;
  struct Try {
    float step;
    double excess;  // log2 of what was coded over what was to be
    double miss;    // share of the wanted size
  };
  std::vector<Try> tries_;
  bool finished_ = false;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_RATE_CHOICE_H_
