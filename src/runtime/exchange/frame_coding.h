// A frame as bytes, and back: the pieces of docs/format.md, in memory of the caller. Nothing that
// is not coded is copied: fresh memory costs more than coding.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_FRAME_CODING_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_FRAME_CODING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runtime/exchange/shards.h"

namespace slimgrad::exchange {

// The most bytes that a frame of this type can take.
std::uint64_t frame_bound(const Frame& frame, at::ScalarType type);

// Codes the pieces into `out`, of frame_bound() bytes; returns how many that took. `replace` gives
// the pieces the values that a reader gets; what a codec prunes is pruned in place in any case.
std::size_t encode_frame(const Frame& frame, const Codec& codec, std::uint64_t seed, bool replace,
                         std::span<std::uint8_t> out);

// Decodes into `tensors`, which have the types that were coded, or adds to them, which are float32
// then, values of `type`. Throws PayloadError for anything
// but an undamaged frame of pieces of these sizes under this codec; nothing is decoded before the
// payload was found to be what was expected.
void decode_frame(std::span<const std::uint8_t> bytes, const Frame& frame, const Codec& codec,
                  at::ScalarType type, const std::vector<at::Tensor>& tensors, bool add);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_FRAME_CODING_H_
