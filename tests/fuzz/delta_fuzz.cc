// Any bytes as a delta to a base of a few thousand values, and as a delta of several tensors: a
// PayloadError, or values; never a crash, a hang or an overrun. The checksum and the base's hash
// are made right first, or the fuzzer would never get behind them.
#include <slimgrad/delta.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arrays/coding/checksum.h"

namespace {

void repair_checksum(std::span<std::uint8_t> payload) {
  if (payload.size() < 8) return;
  const std::uint64_t sum = slimgrad::checksum(payload.first(payload.size() - 8));
  std::memcpy(payload.data() + payload.size() - 8, &sum, 8);
}

void apply(std::span<std::uint8_t> payload) {
  repair_checksum(payload);
  const slimgrad::DeltaInfo info = slimgrad::inspect_delta(payload);
  if (info.num_bytes() > std::uint64_t{1} << 20) return;
  std::vector<std::uint8_t> base(info.num_bytes());
  for (std::size_t i = 0; i < base.size(); ++i)
    base[i] = static_cast<std::uint8_t>(i * 0x9e3779b1u >> 24);
  const slimgrad::DeltaTensor tensor = {"", info.type, info.shape, base};
  const slimgrad::Hash128 hash = slimgrad::hash_of(tensor);
  // The hashes lie behind the shape, whose length depends on it.
  for (std::size_t at = 7; at + 32 < payload.size() && at < 64; ++at)
    if (std::memcmp(payload.data() + at, &info.base, 16) == 0) {
      std::memcpy(payload.data() + at, &hash, 16);
      break;
    }
  repair_checksum(payload);
  std::vector<std::uint8_t> in_place = base;
  try {
    slimgrad::apply_delta(base, payload);
  } catch (const slimgrad::PayloadError&) {
  }
  try {
    slimgrad::apply_delta(in_place, payload, in_place);
  } catch (const slimgrad::PayloadError&) {
    if (in_place != base) __builtin_trap();  // a failure in place leaves the base as it was
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file(data, data + size);
  try {
    if (slimgrad::is_delta_set(file)) {
      repair_checksum(std::span(file).first(std::min<std::size_t>(size, 48)));
      const slimgrad::DeltaSet set = slimgrad::parse_delta_set(file);
      for (const slimgrad::ContainerEntry& entry : set.index.entries)
        slimgrad::entry_bytes(
            entry, std::span<const std::uint8_t>(file).subspan(entry.offset, entry.num_bytes),
            nullptr);
    } else {
      apply(file);
    }
  } catch (const slimgrad::PayloadError&) {
  }
  return 0;
}
