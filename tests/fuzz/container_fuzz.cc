// Any bytes as the index of a container, and as what follows it: a PayloadError, or tensors; never
// a crash, a hang, an overrun or more memory than scripts/fuzz allows. The first four bytes say how
// many of the rest are the index, which the fuzzer writes as text: behind a checksum and a coder it
// would never get. With their highest bit set it writes a payload, whose checksum is made right:
// few bytes may stand for much text.
#include <slimgrad/payload.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "arrays/coding/checksum.h"

namespace {

constexpr std::uint32_t kIsPayload = std::uint32_t{1} << 31;

void repair_checksum(std::span<std::uint8_t> payload) {
  if (payload.size() < 16) return;
  const std::uint64_t sum = slimgrad::checksum(payload.first(payload.size() - 8));
  std::memcpy(payload.data() + payload.size() - 8, &sum, 8);
}

// The payload of the index, and in front of it what a container begins with.
std::vector<std::uint8_t> container_of(std::span<const std::uint8_t> index, bool is_payload) {
  std::vector<std::uint8_t> payload(index.begin(), index.end());
  if (is_payload)
    repair_checksum(payload);
  else
    payload = slimgrad::encode({index.data(), slimgrad::DType::kInt8, {index.size()}});
  std::vector<std::uint8_t> file = {0x8d, 'S', 'G', 'C', 1, 0, 0, 0};
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::uint8_t>(payload.size() >> (8 * i)));
  file.insert(file.end(), payload.begin(), payload.end());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 25;
  if (size < 4) return 0;
  std::uint32_t split = 0;
  std::memcpy(&split, data, 4);
  const std::span<const std::uint8_t> rest(data + 4, size - 4);
  const std::size_t index_bytes = std::min<std::size_t>(split & ~kIsPayload, rest.size());
  std::vector<std::uint8_t> file = container_of(rest.first(index_bytes), (split & kIsPayload) != 0);
  file.insert(file.end(), rest.begin() + static_cast<std::ptrdiff_t>(index_bytes), rest.end());
  try {
    const slimgrad::ContainerIndex index = slimgrad::parse_container(file);
    for (const slimgrad::ContainerEntry& entry : index.entries) {
      const std::span<std::uint8_t> payload =
          std::span(file).subspan(entry.offset, entry.num_bytes);
      repair_checksum(payload);
      slimgrad::check_entry(entry, slimgrad::inspect(payload));
      slimgrad::decode(payload, kMostBytes);
    }
  } catch (const slimgrad::PayloadError&) {
  }
  return 0;
}
