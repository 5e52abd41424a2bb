#include "kernels/coding/rans.h"

#include <algorithm>
#include <bit>

#include "kernels/coding/rans_scalar.h"

namespace slimgrad::kernels {

void build_encode_table(const RansFrequencies& frequencies, RansEncodeTable& table) noexcept {
  using Entry = RansEncodeEntry;
  std::uint32_t start = 0;
  for (int s = 0; s < 256; ++s) {
    const std::uint32_t frequency = frequencies.frequency[s];
    if (frequency == 0) continue;
    const int log2 = std::bit_width(frequency - 1);  // rounded up
    const std::uint64_t reciprocal =
        ((std::uint64_t{1} << (31 + log2)) + frequency - 1) / frequency;
    const std::uint32_t shift = frequency > 1 ? static_cast<std::uint32_t>(log2 - 1) : 0;
    const std::uint32_t bias = frequency > 1 ? start : start + kRansTotal - 1;
    table.entry[s] = {frequency > 1 ? static_cast<std::uint32_t>(reciprocal) : 0xffffffffu,
                      (kRansTotal - frequency) | bias << Entry::kBiasAt | shift << Entry::kShiftAt};
    start += frequency;
  }
  const auto commonest =
      std::max_element(frequencies.frequency.begin(), frequencies.frequency.end());
  const RansEncodeEntry other =
      table.entry[frequencies.has_escape() ? frequencies.escape
                                           : commonest - frequencies.frequency.begin()];
  for (int s = 0; s < 256; ++s)
    if (frequencies.frequency[s] == 0) table.entry[s] = other;
}

void build_decode_table(const RansFrequencies& frequencies, RansDecodeTable& table) noexcept {
  std::uint32_t* slot = table.slots();
  for (std::uint32_t s = 0; s < 256; ++s) {
    const std::uint32_t frequency = frequencies.frequency[s];
    const std::uint32_t entry = frequency << 20 | s << 12;
    // Eight at a time, into what comes later or into the margin.
    for (std::uint32_t i = 0; i < frequency; i += 8)
      for (std::uint32_t k = 0; k < 8; ++k) slot[i + k] = entry + i + k;
    slot += frequency;
  }
}

std::span<const std::uint8_t> rans_encode_scalar(std::span<const std::uint8_t> symbols,
                                                 const RansEncodeTable& table,
                                                 std::span<std::uint8_t> scratch) noexcept {
  rans::States states;
  states.fill(kRansLow);
  std::uint8_t* end = scratch.data() + scratch.size();
  for (std::size_t size = symbols.size(); size > 0;) {
    const std::size_t first = (size - 1) / kRansStates * kRansStates;
    rans::encode_group(symbols.subspan(first, size - first), table, states, end);
    size = first;
  }
  return rans::store_states(states, end, scratch);
}

DecodeStatus rans_decode_scalar(std::span<const std::uint8_t> bytes, const RansDecodeTable& table,
                                std::span<std::uint8_t> symbols) noexcept {
  rans::States states;
  const DecodeStatus status = rans::load_states(bytes, states);
  if (status != DecodeStatus::kOk) return status;
  return rans::decode_rest(table, states, bytes.data() + kRansStateBytes,
                           bytes.data() + bytes.size(), symbols);
}

}  // namespace slimgrad::kernels
