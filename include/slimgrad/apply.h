// Quantizing, pruning, or both, over an array, and real low-bit storage. treatment.h has the
// settings; threshold.h finds thresholds, format_choice.h formats and scales.
//
// **Quantizing** rounds to the grid of a FloatFormat at a scale. The values themselves stay
// float32, bfloat16 or float16.
//
// For every value x, with y = |x| / scale in float32, as a product with the inverse of the scale,
// which is rounded up: exact for powers of two, else good to two units of the last place.
//
//   nearest      the grid value nearest to y; a tie goes to the neighbour with the even code
//   stochastic   a neighbour l <= y < u: u with probability (y - l) / (u - l), so that E = y
//   above        the largest grid value that, times scale, the type of the array can hold
//   below        of the smallest grid value s: Underflow::kZero gives 0, never s;
//                Underflow::kStochastic gives s with probability y / s, so that E = y
//   result       the grid value times scale with the sign of x; every zero is +0
//   NaN, Inf     unchanged, and counted
//
// The result is rounded to the type of the array. It is exact if the scale is a power of two,
// because a grid value has at most 7 significant bits and bfloat16 has 8, unless the product is
// subnormal in that type. With any other scale the product is the nearest number of the type.
//
// **Pruning** is stochastic.
//
// With threshold a, a value with |x| > a stays as it is; any other becomes a with the sign of x
// with probability |x| / a (to two units of float32's last place), else +0. So E = x. NaN and Inf
// stay, and are counted. A threshold of 0 leaves everything alone. For bfloat16 and float16 the
// threshold is rounded to the type first, so that +-a is what the probability was made for and the
// result stays unbiased.
//
// **Packing** stores one code of exactly format.bits() bits for each value, without gaps. Eight
// values take format.bits() bytes; src/formats/bit_packing.h draws the layout.
//
// unpack(pack(x)) is quantize(x) with the same arguments, bit for bit, but for NaN and Inf: no
// format has codes for them. pack() writes zero for NaN and the largest value for Inf and counts
// both; a caller that must not lose them checks the count.
//
// Random numbers are a function of (seed, element index) alone, see base/rng.h: the same array
// gives the same result on every CPU and however it is cut into pieces. To work in pieces, call
// with subspans and first_index, the index of their first element: a multiple of kPieceElements.
//
// All functions may be called from several threads at once.
#ifndef SLIMGRAD_APPLY_H_
#define SLIMGRAD_APPLY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <slimgrad/float_format.h>
#include <slimgrad/half.h>
#include <slimgrad/treatment.h>

namespace slimgrad {

inline constexpr std::uint64_t kPieceElements = 256;

// `out` is `in` itself or does not overlap it. Throws InvalidArgument for a scale out of range, for
// sizes that differ and for a first_index that is no multiple of kPieceElements.
ApplyCounts quantize(std::span<const float> in, std::span<float> out, const Quantizer& quantizer,
                     std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts quantize(std::span<const BFloat16Bits> in, std::span<BFloat16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts quantize(std::span<const Float16Bits> in, std::span<Float16Bits> out,
                     const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index = 0);

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

// What a treatment says: one of the above, or nothing but counting.
ApplyCounts apply(const Treatment& treatment, std::span<const float> in, std::span<float> out,
                  std::uint64_t first_index = 0);
ApplyCounts apply(const Treatment& treatment, std::span<const BFloat16Bits> in,
                  std::span<BFloat16Bits> out, std::uint64_t first_index = 0);
ApplyCounts apply(const Treatment& treatment, std::span<const Float16Bits> in,
                  std::span<Float16Bits> out, std::uint64_t first_index = 0);

// ceil(num_values * bits / 8). The last byte is padded with zero bits.
std::size_t packed_size(const FloatFormat& format, std::size_t num_values);

// Throws InvalidArgument unless packed.size() == packed_size(format, in.size()), and as quantize()
// does.
ApplyCounts pack(std::span<const float> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts pack(std::span<const BFloat16Bits> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index = 0);
ApplyCounts pack(std::span<const Float16Bits> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index = 0);

// Every byte string of the right size is valid. A code of zero with any sign or mantissa is +0; a
// product beyond the type's range is the type's largest number. Throws InvalidArgument unless
// packed.size() == packed_size(format, out.size()), and for a scale out of range.
void unpack(std::span<const std::uint8_t> packed, std::span<float> out, const FloatFormat& format,
            double scale);
void unpack(std::span<const std::uint8_t> packed, std::span<BFloat16Bits> out,
            const FloatFormat& format, double scale);
void unpack(std::span<const std::uint8_t> packed, std::span<Float16Bits> out,
            const FloatFormat& format, double scale);

}  // namespace slimgrad

#endif  // SLIMGRAD_APPLY_H_
