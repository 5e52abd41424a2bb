// Seeds of random draws. Every place that draws has a seed of its own, derived from one for the
// run: two places that draw the same numbers make the same errors, which then do not average out.
//
//   const std::uint64_t seed = derive_seed(run_seed, {"encoder.0.linear1", rank, step});
//
// Seeds are mixed, never added: seed + i c, applied twice, gives equal seeds to different places by
// construction. Here each part changes every bit, so that two lists of parts that differ, in their
// order too, give the same seed with a probability of 2^-64. Same result as slimgrad.derive_seed()
// in Python.
#ifndef SLIMGRAD_SEED_H_
#define SLIMGRAD_SEED_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace slimgrad {

// SplitMix64 (Steele, Lea, Flood 2014): a bijection in which each bit of x changes every other one.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What tells one place from another: a number, or a name.
struct SeedPart {
  std::uint64_t bits;

  template <std::integral T>
  constexpr SeedPart(T number) : bits(static_cast<std::uint64_t>(number)) {}
  constexpr SeedPart(const char* name) : SeedPart(std::string_view(name)) {}
  // FNV-1a, which mix_bits() then spreads.
  constexpr SeedPart(std::string_view name) : bits(0xcbf29ce484222325u) {
    for (const char c : name)
      bits = (bits ^ static_cast<unsigned char>(c)) * std::uint64_t{0x100000001b3};
  }
};

// derive_seed(seed, {a, b}) is derive_seed(derive_seed(seed, {a}), {b}).
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::initializer_list<SeedPart> parts) {
  for (const SeedPart& part : parts) seed = mix_bits(seed ^ mix_bits(part.bits));
  return seed;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_SEED_H_
