// Any bytes as a payload: a PayloadError, or values; never a crash, a hang or an overrun. The
// checksum is made right first, or the fuzzer would never get behind it.
#include <slimgrad/payload.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arrays/coding/checksum.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A few bytes may announce constant blocks of 2^20 values each, rightly; here that is too slow.
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 25;
  std::vector<std::uint8_t> payload(data, data + size);
  if (size >= 16) {
    const std::uint64_t sum = slimgrad::checksum(std::span(payload).first(size - 8));
    std::memcpy(payload.data() + size - 8, &sum, 8);
  }
  try {
    const slimgrad::PayloadDecoder decoder(payload);
    if (decoder.info().num_bytes() > kMostBytes) return 0;
    std::vector<std::uint8_t> values(decoder.info().num_bytes());
    decoder.run(0, decoder.num_blocks(), values);
    const slimgrad::DType dtype = decoder.info().dtype;
    if (dtype == slimgrad::DType::kFloat64 || dtype == slimgrad::DType::kInt8) return 0;
    std::vector<float> sums(decoder.info().num_values());
    decoder.add(0, decoder.num_blocks(), sums);
  } catch (const slimgrad::PayloadError&) {
  }
  return 0;
}
