// What is done to every value of an array: pruning, rounding, or both; and what that did. Plain
// data, the same from the decision (choose_treatment() in gate.h) to the inner loop; apply.h has
// the rules. Values; threads may share them.
#ifndef SLIMGRAD_TREATMENT_H_
#define SLIMGRAD_TREATMENT_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include <slimgrad/float_format.h>

namespace slimgrad {

enum class Rounding { kNearest, kStochastic };
enum class Underflow { kZero, kStochastic };

// "nearest", "stochastic"; "zero", "stochastic". Throw InvalidArgument for other names.
std::string_view rounding_name(Rounding rounding);
std::string_view underflow_name(Underflow underflow);
Rounding parse_rounding(std::string_view name);
Underflow parse_underflow(std::string_view name);

struct Quantizer {
  FloatFormat format;
  double scale = 1.0;  // Used as a float32: positive, finite and not subnormal.
  Rounding rounding = Rounding::kNearest;
  Underflow underflow = Underflow::kZero;
};

// What a gate prunes by; gate.h has the names.
enum class PruneKind {
  kNone,
  kStochastic,      // threshold for the expected sparsity, unbiased: the method of slimgrad
  kTopK,            // baseline: zero the smallest share of the magnitudes; biased
  kTopKStochastic,  // baseline: the top-k threshold, pruned stochastically; sparsity falls short
};

struct Treatment {
  double threshold = 0;  // for pruning; 0: nothing is pruned
  // Below the threshold everything becomes zero, for certain: top-k, a biased baseline.
  bool drops = false;
  std::optional<Quantizer> quantizer = {};  // none: nothing is rounded
  std::uint64_t seed = 0;                   // for the random draws

  bool prunes() const { return threshold > 0; }
};

// What quantizing or pruning an array saw and did.
struct ApplyCounts {
  std::uint64_t zeros = 0;         // in the result, those that were zero before included
  std::uint64_t at_threshold = 0;  // set to +-threshold by pruning
  std::uint64_t nonfinite = 0;     // NaN and Inf

  ApplyCounts& operator+=(const ApplyCounts& other) {
    zeros += other.zeros;
    at_threshold += other.at_threshold;
    nonfinite += other.nonfinite;
    return *this;
  }
  bool operator==(const ApplyCounts&) const = default;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_TREATMENT_H_
