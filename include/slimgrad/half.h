// The two 16-bit float types, as bits. slimgrad reads them through integers and never computes in
// them, so that every compiler and CPU can handle them; a pointer to torch's or anyone else's
// bfloat16 or float16 array may be reinterpreted as one of these.
#ifndef SLIMGRAD_HALF_H_
#define SLIMGRAD_HALF_H_

#include <cstdint>

namespace slimgrad {

// The upper half of a float32: 1 sign, 8 exponent and 7 mantissa bits.
struct BFloat16Bits {
  std::uint16_t bits;
};

// IEEE binary16: 1 sign, 5 exponent and 10 mantissa bits.
struct Float16Bits {
  std::uint16_t bits;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_HALF_H_
