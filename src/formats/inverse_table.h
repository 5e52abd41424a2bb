// The derivative of an activation as a function of its output: what the invertible mode reads.
//
// GELU, SiLU and Mish fall to one minimum and then rise. So the output y and one bit, "right of the
// minimum", determine the input and hence the slope. The slope is a smooth function of
//     u = y - minimum   to the right, and to the left near the minimum, where it goes as sqrt(u);
//     v = -y            to the left far from the minimum, where it goes as v sqrt(log(1/v)),
// in every octave. So each octave of u and of v is cut into eight pieces with a cubic each, and the
// upper bits of the float32 u or v are the number of the piece:
//
//     right  u in [2^-27, 32)       256 pieces; below, the slope is 0; above, it is 1
//     near   u in [2^-27, 1/4)      200 pieces; left, y <= -split; below, 0
//     tail   v in [2^-40, 1/4)      304 pieces; left, y > -split; below, 0 (it is under 1e-10)
//
// The cubic is in f, the position inside the piece from 0 to 1.
#ifndef SLIMGRAD_FORMATS_INVERSE_TABLE_H_
#define SLIMGRAD_FORMATS_INVERSE_TABLE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace slimgrad {

struct InverseTable {
  static constexpr int kPieceShift = 20;  // exponent and three bits of the mantissa
  static constexpr int kPiecesPerOctave = 8;
  static constexpr float kSmallestU = 0x1p-27f;
  static constexpr float kSmallestV = 0x1p-40f;
  static constexpr float kLargest = 32.0f;
  // The first piece of each range, less the upper bits of the range's smallest value.
  static constexpr std::int32_t kUpperBitsU = (127 - 27) * kPiecesPerOctave;
  static constexpr std::int32_t kUpperBitsV = (127 - 40) * kPiecesPerOctave;
  static constexpr std::int32_t kNumRight = (27 + 5) * kPiecesPerOctave;
  static constexpr std::int32_t kNumNear = (27 - 2) * kPiecesPerOctave;
  static constexpr std::int32_t kNumTail = (40 - 2) * kPiecesPerOctave;
  static constexpr std::int32_t kRightOffset = -kUpperBitsU;
  static constexpr std::int32_t kNearOffset = kNumRight - kUpperBitsU;
  static constexpr std::int32_t kTailOffset = kNumRight + kNumNear - kUpperBitsV;
  static constexpr std::size_t kNumPieces = kNumRight + kNumNear + kNumTail;

  float minimum = 0;    // the least output
  float minimizer = 0;  // the input there
  float split = 0;      // half of -minimum
  std::array<float, 4 * kNumPieces> coefficients =
      {};  // c0 + f (c1 + f (c2 + f c3)), piece by piece
};

// The slope at the input whose output is y: the specification. NaN stays NaN.
constexpr float slope_from_output(float y, bool is_right, const InverseTable& table) {
  if (y != y) return y;
  const bool is_tail = !is_right && -y < table.split;
  const float w = is_tail ? -y : y - table.minimum;
  if (w >= InverseTable::kLargest) return 1.0f;
  if (!(w >= (is_tail ? InverseTable::kSmallestV : InverseTable::kSmallestU))) return 0.0f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(w);
  const std::int32_t offset = is_right  ? InverseTable::kRightOffset
                              : is_tail ? InverseTable::kTailOffset
                                        : InverseTable::kNearOffset;
  const std::int32_t piece = static_cast<std::int32_t>(bits >> InverseTable::kPieceShift) + offset;
  const float f = std::bit_cast<float>((bits & 0xfffffu) << 3 | 0x3f800000u) - 1.0f;
  const float* c = table.coefficients.data() + 4 * piece;
  return c[0] + f * (c[1] + f * (c[2] + f * c[3]));
}

}  // namespace slimgrad

#endif  // SLIMGRAD_FORMATS_INVERSE_TABLE_H_
