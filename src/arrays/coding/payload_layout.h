// What the files behind payload.h share.
#ifndef SLIMGRAD_ARRAYS_CODING_PAYLOAD_LAYOUT_H_
#define SLIMGRAD_ARRAYS_CODING_PAYLOAD_LAYOUT_H_

#include <algorithm>
#include <optional>

#include <slimgrad/payload.h>
#include <slimgrad/payload_info.h>

#include "arrays/coding/symbol_block.h"
#include "arrays/coding/topk_block.h"
#include "formats/open_levels.h"
#include "formats/value_types.h"
#include "kernels/coding/uniform.h"
#include "math/coding/level_law.h"
#include "math/coding/model_table.h"

namespace slimgrad {

class RateChoice;

inline bool has_open_levels(const PayloadInfo& info) {
  return info.kind == PayloadKind::kUniform && info.bits == kOpenBits;
}

// REQUIRES: info.kind == kTopk.
inline TopkRule topk_rule(const PayloadInfo& info) { return {info.k, info.of, info.bits}; }

inline ModelParameters model_parameters(const PayloadInfo& info) {
  const int half = kernels::uniform_half(info.bits);
  return {info.model_shape, info.model_scale, static_cast<std::uint16_t>(2 * half), 0,
          static_cast<std::uint8_t>(2 * half)};
}

// The table that both sides compute. REQUIRES: info has a model, is_valid(model_parameters(info)).
inline SharedTable model_table(const PayloadInfo& info) {
  return make_shared_table(info.bits == kOpenBits
                               ? level_weights(info.model_shape, info.model_scale)
                               : model_weights(model_parameters(info)));
}

// The values of block `index` are those from `first` on.
struct BlockRange {
  std::size_t first, count;
};
inline BlockRange block_range(const PayloadInfo& info, std::size_t index) {
  const std::uint64_t first = std::uint64_t{index} << info.block_log2;
  const std::uint64_t count =
      std::min(std::uint64_t{1} << info.block_log2, info.num_values() - first);
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(count)};
}

// From a tensor and options to the parameters of its payload, everything but the block index:
// scale, threshold, model. Looks at the values where a parameter must be found in them. Throws
// InvalidArgument for options out of range, for types that the kind does not take and for NaN and
// Inf where the kind has no code for them.
// With a rate, `rate` is what chose the step, and can choose another one.
PayloadInfo choose_payload(const TensorView& tensor, const EncodeOptions& options,
                           std::optional<RateChoice>& rate);
// Makes it the step. REQUIRES: info.bits == kOpenBits.
void set_step(float step, PayloadInfo& info);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PAYLOAD_LAYOUT_H_
