// What the numbers in a delta mean (docs/format.md, "Deltas"): values as integers in their order,
// the class of a base value, differences as symbols, and hazards and gaps, by which positions of
// rare changes are coded.
#ifndef SLIMGRAD_FORMATS_DELTA_VALUES_H_
#define SLIMGRAD_FORMATS_DELTA_VALUES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace slimgrad::delta_format {

// ---- types -------------------------------------------------------------------------------------

enum class ValueKind : std::uint8_t { kFloat, kSigned, kUnsigned };

struct ValueType {
  std::string_view name;  // in the words of .safetensors files
  std::uint8_t width;     // bytes
  ValueKind kind;
  std::uint8_t mantissa_bits = 0;
  std::uint8_t exponent_bits = 0;
};

// The place in this list is the type's code in a header.
inline constexpr std::array<ValueType, 15> kValueTypes = {{
    {"F32", 4, ValueKind::kFloat, 23, 8},
    {"BF16", 2, ValueKind::kFloat, 7, 8},
    {"F16", 2, ValueKind::kFloat, 10, 5},
    {"F64", 8, ValueKind::kFloat, 52, 11},
    {"F8_E4M3", 1, ValueKind::kFloat, 3, 4},
    {"F8_E5M2", 1, ValueKind::kFloat, 2, 5},
    {"I8", 1, ValueKind::kSigned},
    {"I16", 2, ValueKind::kSigned},
    {"I32", 4, ValueKind::kSigned},
    {"I64", 8, ValueKind::kSigned},
    {"U8", 1, ValueKind::kUnsigned},
    {"U16", 2, ValueKind::kUnsigned},
    {"U32", 4, ValueKind::kUnsigned},
    {"U64", 8, ValueKind::kUnsigned},
    {"BOOL", 1, ValueKind::kUnsigned},
}};
inline constexpr std::uint8_t kBytesType = 10;  // U8, for types that are not in the list

inline std::uint8_t type_code(std::string_view name) {
  for (std::size_t i = 0; i < kValueTypes.size(); ++i)
    if (kValueTypes[i].name == name) return static_cast<std::uint8_t>(i);
  return kBytesType;
}

// ---- values and classes ------------------------------------------------------------------------

// Blocks are coded on their own. The lanes of a block, of which the last may be shorter, have
// coders of their own, so that a processor works on several changes at once. Lanes are hashed.
inline constexpr int kBlockLog2 = 17, kLaneLog2 = 16;
inline constexpr std::size_t kBlockValues = std::size_t{1} << kBlockLog2;
inline constexpr std::size_t kLaneValues = std::size_t{1} << kLaneLog2;
inline constexpr std::size_t kMostLanes = kBlockValues / kLaneValues;
constexpr std::size_t num_lanes(std::size_t num_values) {
  return (num_values + kLaneValues - 1) / kLaneValues;
}

// Bits as an unsigned integer in the order of the values. A float's magnitude counts downwards
// where the sign is set, so that -0 lies one below +0. Integers may stay as they are: differences
// are taken modulo 2^bits.
template <typename Word>
constexpr Word to_ordered(Word bits, ValueKind kind) {
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  if (kind != ValueKind::kFloat) return bits;
  // All bits of a negative number, the sign of any other; signs are not foreseen by branches.
  return static_cast<Word>(bits ^ (static_cast<Word>(-(bits >> (8 * sizeof(Word) - 1))) | kSign));
}
template <typename Word>
constexpr Word from_ordered(Word ordered, ValueKind kind) {
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  if (kind != ValueKind::kFloat) return ordered;
  return static_cast<Word>(ordered ^
                           (static_cast<Word>((ordered >> (8 * sizeof(Word) - 1)) - 1) | kSign));
}

// The difference in units of the last place, modulo 2^bits, the nearest to zero.
template <typename Word>
constexpr std::int64_t difference(Word base, Word changed, ValueKind kind) {
  using Signed = std::make_signed_t<Word>;
  return static_cast<Signed>(static_cast<Word>(to_ordered(changed, kind) - to_ordered(base, kind)));
}
template <typename Word>
constexpr Word add_difference(Word base, std::int64_t difference, ValueKind kind) {
  return from_ordered(static_cast<Word>(to_ordered(base, kind) + static_cast<Word>(difference)),
                      kind);
}

// The exponent of a value: a float's exponent field (of float64 its upper eight bits), an integer's
// bit width (of a negative one that of its complement). Zeros are apart, at 255: they are often
// zero for a reason, which holds for the next step.
inline constexpr int kZeroExponent = 255;
template <typename Word>
constexpr int exponent_of(Word bits, const ValueType& type) {
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  if (type.kind == ValueKind::kFloat) {
    const Word magnitude = static_cast<Word>(bits & ~kSign);
    if (magnitude == 0) return kZeroExponent;
    return static_cast<int>(magnitude >>
                            (type.mantissa_bits + std::max(0, type.exponent_bits - 8)));
  }
  if (bits == 0) return kZeroExponent;
  const bool negative = type.kind == ValueKind::kSigned && (bits & kSign) != 0;
  return std::bit_width(static_cast<Word>(negative ? ~bits : bits));
}

// Exponents up to the *split* of a tensor are dense: every value has a symbol. Above it a value has
// one of 15 classes, by which a hazard stands for the chance of a change. A class is 0 for all that
// is dense.
inline constexpr int kClasses = 16;
constexpr int class_of(int exponent, int split) {
  return std::clamp(exponent - split, 0, kClasses - 1);
}
// Contexts, each with a table of symbols: 0 to 15 of dense values, by how far their exponents lie
// below the *top*, then 16 to 30 of changes in the classes 1 to 15.
inline constexpr int kDenseContexts = 16, kContexts = kDenseContexts + kClasses - 1;
constexpr int dense_context(int exponent, int top) {
  return std::clamp(top - exponent, 0, kDenseContexts - 1);
}
constexpr int sparse_context(int value_class) { return kDenseContexts - 1 + value_class; }

// ---- differences as symbols --------------------------------------------------------------------

// 0 for none; magnitudes 1 to 7 with their signs; then magnitudes by their bit width and the bit
// after the highest, whose other bits are written as they are.
struct Symbol {
  std::uint8_t symbol;
  std::uint8_t extra_bits;
  std::uint64_t extra;
};
constexpr Symbol symbol_of(std::int64_t difference) {
  // No branch depends on what is not foreseen: the sign, and whether a dense value changed.
  const bool negative = difference < 0;
  const std::uint64_t sign = 0 - std::uint64_t{negative};
  const std::uint64_t magnitude = (static_cast<std::uint64_t>(difference) ^ sign) - sign;
  if (magnitude < 8)
    return {static_cast<std::uint8_t>(2 * magnitude - (difference > 0 ? 1 : 0)), 0, 0};
  if (magnitude == std::uint64_t{1} << 63) return {255, 0, 0};
  const int width = std::bit_width(magnitude);
  const int next = static_cast<int>(magnitude >> (width - 2) & 1);
  return {static_cast<std::uint8_t>(15 + 2 * (2 * (width - 4) + next) + (negative ? 1 : 0)),
          static_cast<std::uint8_t>(width - 2),
          magnitude & ((std::uint64_t{1} << (width - 2)) - 1)};
}
constexpr int extra_bits_of(std::uint8_t symbol) {
  return symbol < 15 || symbol == 255 ? 0 : (symbol - 15) / 4 + 2;
}
constexpr std::int64_t difference_of(std::uint8_t symbol, std::uint64_t extra) {
  if (symbol < 15) {  // without branches, as the sign is not foreseen
    const std::int64_t magnitude = (symbol + 1) / 2, sign = -std::int64_t{symbol % 2 == 0};
    return (magnitude ^ sign) - sign;
  }
  if (symbol == 255) return INT64_MIN;
  const int width = (symbol - 15) / 4 + 4;
  const std::uint64_t magnitude =
      std::uint64_t{2u + ((symbol - 15u) / 2 & 1u)} << (width - 2) | extra;
  return static_cast<std::int64_t>((symbol - 15) % 2 == 1 ? 0 - magnitude : magnitude);
}

// ---- hazards and gaps --------------------------------------------------------------------------

// A class's hazard is proportional to -ln(1 - p) for the chance p of a change. Between one change
// and the next the hazards of the values in between add up to a number that is distributed like an
// exponential law's, whatever the classes are. Its high bits are the *gap*, a symbol; which of the
// values it is takes the share that its hazard has of 2^16, by the low bits.
inline constexpr int kGapBits = 16;
inline constexpr std::uint32_t kGapUnit = 1u << kGapBits;

// Hazards are sent with two bits behind the highest. The sum over a lane stays below 2^32, and gaps
// below 2^16.
inline constexpr int kMaxHazardCode = 59;
constexpr std::uint32_t hazard_of(int code) {
  return code < 4 ? static_cast<std::uint32_t>(code)
                  : (4u + (static_cast<std::uint32_t>(code) & 3u)) << ((code >> 2) - 1);
}
static_assert(hazard_of(kMaxHazardCode) == 57344 && std::uint64_t{57344} << kLaneLog2 < 1ull << 32);

// Below 16 a gap is its symbol; above, its bit width and the two bits after the highest are.
constexpr Symbol gap_symbol(std::uint32_t gap) {
  if (gap < 16) return {static_cast<std::uint8_t>(gap), 0, 0};
  const int width = std::bit_width(gap);
  return {static_cast<std::uint8_t>(16 + 4 * (width - 5) + (gap >> (width - 3) & 3)),
          static_cast<std::uint8_t>(width - 3), gap & ((1u << (width - 3)) - 1)};
}
inline constexpr int kMaxGapSymbol = 16 + 4 * 11 + 3;  // gaps are below 2^16
constexpr int gap_extra_bits(std::uint8_t symbol) {
  return symbol < 16 ? 0 : (symbol - 16) / 4 + 2;
}
constexpr std::uint32_t gap_of(std::uint8_t symbol, std::uint64_t extra) {
  if (symbol < 16) return symbol;
  return (4u + ((symbol - 16u) & 3u)) << ((symbol - 16) / 4 + 2) |
         static_cast<std::uint32_t>(extra);
}

}  // namespace slimgrad::delta_format

#endif  // SLIMGRAD_FORMATS_DELTA_VALUES_H_
