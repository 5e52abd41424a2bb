// The hash by which deltas know their base and their result (delta.h).
#ifndef SLIMGRAD_HASH128_H_
#define SLIMGRAD_HASH128_H_

#include <cstdint>
#include <string>

namespace slimgrad {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};
std::string hash_text(const Hash128& hash);  // 32 hexadecimal digits

}  // namespace slimgrad

#endif  // SLIMGRAD_HASH128_H_
