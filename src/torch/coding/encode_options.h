// The arguments that the ops of payloads share, as options.
#ifndef SLIMGRAD_TORCH_CODING_ENCODE_OPTIONS_H_
#define SLIMGRAD_TORCH_CODING_ENCODE_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include <slimgrad/payload.h>

#include "torch/apply/apply.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {

// What is out of range here stays out of range, for the encoder to refuse.
inline int small_int(std::int64_t value) {
  return static_cast<int>(std::clamp<std::int64_t>(value, -1, 99));
}

// Throws InvalidArgument for unknown names and formats.
inline EncodeOptions encode_options(std::string_view kind, std::int64_t bits,
                                    std::int64_t exponent_bits, std::int64_t mantissa_bits,
                                    std::string_view survivors, std::string_view coder,
                                    std::string_view model, std::string_view rounding) {
  const Quantizer quantizer = quantizer_of(exponent_bits, mantissa_bits, 1.0, rounding, "zero");
  EncodeOptions options;
  options.kind = parse_payload_kind(kind);
  options.coder = parse_entropy_coder(coder);
  options.bits = small_int(bits);
  options.model = parse_table_model(model);
  options.format = quantizer.format;
  options.rounding = quantizer.rounding;
  options.survivors = parse_survivors(survivors);
  return options;
}

inline void set_values(EncodeOptions& options, double scale, double threshold, double rate,
                       double max_error, std::optional<std::int64_t> seed) {
  options.scale = scale;
  options.threshold = threshold;
  options.rate = rate;
  options.max_error = max_error;
  if (seed) options.seed = static_cast<std::uint64_t>(*seed);
}

// Blocks on torch's threads, once more if the step was corrected.
inline void encode_blocks(PayloadEncoder& encoder) {
  do
    for_ranges(encoder.num_blocks(), 1,
               [&](std::size_t i, std::size_t end) { encoder.run(i, end); });
  while (encoder.correct());
}

// How many bytes a reader accepts; without a number, all.
inline std::uint64_t byte_limit(std::optional<std::int64_t> max_bytes) {
  constexpr auto kAll = static_cast<std::int64_t>(kNoByteLimit);
  return static_cast<std::uint64_t>(std::clamp<std::int64_t>(max_bytes.value_or(kAll), 0, kAll));
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CODING_ENCODE_OPTIONS_H_
