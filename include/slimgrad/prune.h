// Stochastic pruning of an array, alone or together with quantizing; pruning.h finds the threshold.
//
// With threshold a, a value with |x| > a stays as it is; any other becomes a with the sign of x
// with probability |x| / a (to two units of float32's last place), else +0. So E = x. NaN and Inf
// stay, and are counted. A threshold of 0 leaves everything alone. For bfloat16 and float16 the
// threshold is rounded to the type first, so that +-a is what the probability was made for and the
// result stays unbiased.
//
// Threads, pieces and random numbers: as in quantize.h.
#ifndef SLIMGRAD_PRUNE_H_
#define SLIMGRAD_PRUNE_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>
#include <slimgrad/quantize.h>

namespace slimgrad {

// Throws InvalidArgument for a threshold that is negative, NaN or too large for the type, and as
// quantize() does.
ApplyCounts prune(std::span<const float> in, std::span<float> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts prune(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts prune(std::span<const Float16Bits> in, std::span<Float16Bits> out, double threshold,
                  std::uint64_t seed, std::uint64_t first_index = 0);

// quantize() of what prune() gives, in one pass. Where rounding draws nothing it is that, with the
// same seed, bit for bit. Else one draw serves both decisions, with the law of two independent ones
// (docs/maths.md): a threshold that is not on the grid is rounded like any value, and stochastic
// rounding and underflow keep the whole unbiased.
ApplyCounts prune_quantize(std::span<const float> in, std::span<float> out, double threshold,
                           const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index = 0);
ApplyCounts prune_quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index = 0);
ApplyCounts prune_quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                           double threshold, const Quantizer& quantizer, std::uint64_t seed,
                           std::uint64_t first_index = 0);

}  // namespace slimgrad

#endif  // SLIMGRAD_PRUNE_H_
