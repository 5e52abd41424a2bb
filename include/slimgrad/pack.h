// Real low-bit storage: one code of exactly format.bits() bits for each value, without gaps. Eight
// values take format.bits() bytes; src/formats/bit_packing.h draws the layout.
//
// unpack(pack(x)) is quantize(x) with the same arguments, bit for bit, but for NaN and Inf: no
// format has codes for them. pack() writes zero for NaN and the largest value for Inf and counts
// both; whoever must not lose them looks at the count.
//
// Threads, pieces and random numbers: as in apply.h.
#ifndef SLIMGRAD_PACK_H_
#define SLIMGRAD_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <slimgrad/apply.h>
#include <slimgrad/float_format.h>
#include <slimgrad/half.h>

namespace slimgrad {

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

#endif  // SLIMGRAD_PACK_H_
