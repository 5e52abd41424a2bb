// quantize.h and prune.h: checks, then one kernel call.
#include <slimgrad/prune.h>
#include <slimgrad/quantize.h>

#include "base/check.h"
#include "base/rng.h"
#include "codecs/plan.h"
#include "kernels/apply.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

static_assert(kPieceElements % (2 * kPruneStrata * kTileElements) == 0,
              "kernels draw for two tiles and their strata at a time");

template <typename T>
ApplyCounts run(std::string_view op, const kernels::Plan& plan, std::span<const T> in,
                std::span<T> out, std::uint64_t first_index) {
  check(in.size() == out.size(), op, "as many output as input values", out.size(), " and ",
        in.size());
  check(first_index % kPieceElements == 0, op, "a first_index that is a multiple of 256",
        first_index);
  kernels::obey_environment();
  return kernels::apply(plan, in.data(), out.data(), in.size(), first_index);
}

template <typename T>
ApplyCounts quantize_values(std::span<const T> in, std::span<T> out, const Quantizer& quantizer,
                            std::uint64_t seed, std::uint64_t first_index) {
  kernels::Plan plan;
  plan.quantizes = true;
  plan.grid = make_grid("quantize", quantizer, kValueType<T>);
  plan.seed = seed;
  return run("quantize", plan, in, out, first_index);
}

template <typename T>
ApplyCounts prune_values(std::span<const T> in, std::span<T> out, double threshold,
                         std::uint64_t seed, std::uint64_t first_index) {
  kernels::Plan plan;
  plan.threshold = make_threshold("prune", threshold, kValueType<T>);
  plan.prunes = plan.threshold > 0;
  plan.seed = seed;
  return run("prune", plan, in, out, first_index);
}

template <typename T>
ApplyCounts prune_quantize_values(std::span<const T> in, std::span<T> out, double threshold,
                                  const Quantizer& quantizer, std::uint64_t seed,
                                  std::uint64_t first_index) {
  kernels::Plan plan;
  plan.threshold = make_threshold("prune_quantize", threshold, kValueType<T>);
  plan.prunes = plan.threshold > 0;
  plan.quantizes = true;
  plan.grid = make_grid("prune_quantize", quantizer, kValueType<T>);
  plan.seed = seed;
  return run("prune_quantize", plan, in, out, first_index);
}

}  // namespace

ApplyCounts quantize(std::span<const float> in, std::span<float> out, const Quantizer& quantizer,
                     std::uint64_t seed, std::uint64_t first_index) {
  return quantize_values(in, out, quantizer, seed, first_index);
}
ApplyCounts quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return quantize_values(in, out, quantizer, seed, first_index);
}
ApplyCounts quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return quantize_values(in, out, quantizer, seed, first_index);
}

ApplyCounts prune(std::span<const float> in, std::span<float> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return prune_values(in, out, threshold, seed, first_index);
}
ApplyCounts prune(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return prune_values(in, out, threshold, seed, first_index);
}
ApplyCounts prune(std::span<const Float16Bits> in, std::span<Float16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index) {
  return prune_values(in, out, threshold, seed, first_index);
}

ApplyCounts prune_quantize(std::span<const float> in, std::span<float> out, double threshold,
                           const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return prune_quantize_values(in, out, threshold, quantizer, seed, first_index);
}
ApplyCounts prune_quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return prune_quantize_values(in, out, threshold, quantizer, seed, first_index);
}
ApplyCounts prune_quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index) {
  return prune_quantize_values(in, out, threshold, quantizer, seed, first_index);
}

}  // namespace slimgrad
