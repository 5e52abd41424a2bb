// A mixing function for indices: SplitMix64's finaliser (Steele, Lea, Flood 2014). For choosing
// positions, not for random draws, which rng.h makes.
#ifndef SLIMGRAD_BASE_HASH_H_
#define SLIMGRAD_BASE_HASH_H_

#include <cstdint>

namespace slimgrad {

constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_HASH_H_
