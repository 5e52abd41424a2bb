// slimgrad/apply.h: checks, then one kernel call.
#include <slimgrad/apply.h>

#include "arrays/apply/loop_treatment.h"
#include "base/check.h"
#include "base/rng.h"
#include "kernels/apply/apply.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

static_assert(kPieceElements % (2 * kPruneStrata * kTileElements) == 0,
              "kernels draw for two tiles and their strata at a time");

// Top-k is a baseline, not a fast path: a loop before the kernel's. The threshold is a number of
// the type, as in pruning.
template <typename T>
void drop_below(float threshold, std::span<const T> in, std::span<T> out) {
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] = kernels::drop_value(kernels::float_bits(in[i]), threshold) == 0 ? T{} : in[i];
}

}  // namespace

template <typename T>
ApplyCounts apply_as(std::string_view op, const Treatment& treatment, std::span<const T> in,
                     std::span<T> out, std::uint64_t first_index) {
  check(in.size() == out.size(), op, "as many output as input values", out.size(), " and ",
        in.size());
  check(first_index % kPieceElements == 0, op, "a first_index that is a multiple of 256",
        first_index);
  if (treatment.drops) {
    drop_below(make_threshold(op, treatment.threshold, kDType<T>), in, out);
    return apply_as<T>(op, {.quantizer = treatment.quantizer, .seed = treatment.seed}, out, out,
                       first_index);
  }
  kernels::obey_environment();
  return kernels::apply(loop_treatment<T>(op, treatment), in.data(), out.data(), in.size(),
                        first_index);
}

template ApplyCounts apply_as(std::string_view, const Treatment&, std::span<const float>,
                              std::span<float>, std::uint64_t);
template ApplyCounts apply_as(std::string_view, const Treatment&, std::span<const BFloat16Bits>,
                              std::span<BFloat16Bits>, std::uint64_t);
template ApplyCounts apply_as(std::string_view, const Treatment&, std::span<const Float16Bits>,
                              std::span<Float16Bits>, std::uint64_t);

ApplyCounts quantize(std::span<const float> in, std::span<float> out, const Quantizer& quantizer,
                     std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("quantize", {.quantizer = quantizer, .seed = seed}, in, out, first_index);
}
ApplyCounts quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("quantize", {.quantizer = quantizer, .seed = seed}, in, out, first_index);
}
ApplyCounts quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("quantize", {.quantizer = quantizer, .seed = seed}, in, out, first_index);
}

ApplyCounts prune(std::span<const float> in, std::span<float> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("prune", {.threshold = threshold, .seed = seed}, in, out, first_index);
}
ApplyCounts prune(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("prune", {.threshold = threshold, .seed = seed}, in, out, first_index);
}
ApplyCounts prune(std::span<const Float16Bits> in, std::span<Float16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return apply_as("prune", {.threshold = threshold, .seed = seed}, in, out, first_index);
}

ApplyCounts prune_quantize(std::span<const float> in, std::span<float> out, double threshold,
                           const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return apply_as("prune_quantize", {.threshold = threshold, .quantizer = quantizer, .seed = seed},
                  in, out, first_index);
}
ApplyCounts prune_quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return apply_as("prune_quantize", {.threshold = threshold, .quantizer = quantizer, .seed = seed},
                  in, out, first_index);
}
ApplyCounts prune_quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return apply_as("prune_quantize", {.threshold = threshold, .quantizer = quantizer, .seed = seed},
                  in, out, first_index);
}

ApplyCounts apply(const Treatment& treatment, std::span<const float> in, std::span<float> out,
                  std::uint64_t first_index) {
  return apply_as("apply", treatment, in, out, first_index);
}
ApplyCounts apply(const Treatment& treatment, std::span<const BFloat16Bits> in,
                  std::span<BFloat16Bits> out, std::uint64_t first_index) {
  return apply_as("apply", treatment, in, out, first_index);
}
ApplyCounts apply(const Treatment& treatment, std::span<const Float16Bits> in,
                  std::span<Float16Bits> out, std::uint64_t first_index) {
  return apply_as("apply", treatment, in, out, first_index);
}

}  // namespace slimgrad
