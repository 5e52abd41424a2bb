#include <slimgrad/apply.h>

#include <algorithm>
#include <array>

#include "arrays/apply/loop_treatment.h"
#include "arrays/apply/value_table.h"
#include "base/check.h"
#include "formats/bit_packing.h"
#include "kernels/apply/apply.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

// Codes pass through a buffer of one byte a code that stays in the first-level cache.
constexpr std::size_t kBufferCodes = 4096;
static_assert(kBufferCodes % kPieceElements == 0);

void check_size(std::string_view op, const FloatFormat& format, std::size_t num_values,
                std::size_t num_bytes) {
  check(num_bytes == packed_size(format, num_values), op, "ceil(values * bits / 8) packed bytes",
        num_bytes, " for ", num_values, " values of ", format.bits(), " bits");
}

template <typename T>
ApplyCounts pack_values(std::span<const T> in, std::span<std::uint8_t> packed,
                        const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  const int bits = quantizer.format.bits();
  check_size("pack", quantizer.format, in.size(), packed.size());
  check(first_index % kPieceElements == 0, "pack", "a first_index that is a multiple of 256",
        first_index);
  const kernels::LoopTreatment treatment =
      loop_treatment<T>("pack", {.quantizer = quantizer, .seed = seed});
  kernels::obey_environment();
  ApplyCounts counts;
  std::array<std::uint8_t, kBufferCodes> codes;
  for (std::size_t i = 0; i < in.size(); i += kBufferCodes) {
    const std::size_t num_codes = std::min(kBufferCodes, in.size() - i);
    counts += kernels::encode(treatment, in.data() + i, codes.data(), num_codes, first_index + i);
    std::uint8_t* to = packed.data() + packed_bytes(i, bits);
    with_bits(bits, [&]<int b>() { pack_codes<b>(codes.data(), num_codes, to); });
  }
  return counts;
}

template <typename T>
void unpack_values(std::span<const std::uint8_t> packed, std::span<T> out,
                   const FloatFormat& format, double scale) {
  const int bits = format.bits();
  check_size("unpack", format, out.size(), packed.size());
  const std::array<T, 256> table = float_value_table<T>(format, checked_scale("unpack", scale));
  std::array<std::uint8_t, kBufferCodes> codes;
  for (std::size_t i = 0; i < out.size(); i += kBufferCodes) {
    const std::size_t num_codes = std::min(kBufferCodes, out.size() - i);
    const std::uint8_t* from = packed.data() + packed_bytes(i, bits);
    with_bits(bits, [&]<int b>() { unpack_codes<b>(from, num_codes, codes.data()); });
    for (std::size_t j = 0; j < num_codes; ++j) out[i + j] = table[codes[j]];
  }
}

}  // namespace

std::size_t packed_size(const FloatFormat& format, std::size_t num_values) {
  return packed_bytes(num_values, format.bits());
}

ApplyCounts pack(std::span<const float> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return pack_values(in, packed, quantizer, seed, first_index);
}
ApplyCounts pack(std::span<const BFloat16Bits> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return pack_values(in, packed, quantizer, seed, first_index);
}
ApplyCounts pack(std::span<const Float16Bits> in, std::span<std::uint8_t> packed,
                 const Quantizer& quantizer, std::uint64_t seed, std::uint64_t first_index) {
  return pack_values(in, packed, quantizer, seed, first_index);
}

void unpack(std::span<const std::uint8_t> packed, std::span<float> out, const FloatFormat& format,
            double scale) {
  unpack_values(packed, out, format, scale);
}
void unpack(std::span<const std::uint8_t> packed, std::span<BFloat16Bits> out,
            const FloatFormat& format, double scale) {
  unpack_values(packed, out, format, scale);
}
void unpack(std::span<const std::uint8_t> packed, std::span<Float16Bits> out,
            const FloatFormat& format, double scale) {
  unpack_values(packed, out, format, scale);
}

}  // namespace slimgrad
