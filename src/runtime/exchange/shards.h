// How tensors are cut for an exchange: into shards, one for each rank, of frames of pieces.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_SHARDS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_SHARDS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <slimgrad/codec.h>

namespace slimgrad::exchange {

// A slice of a tensor, flat.
struct Piece {
  at::Tensor values;
  bool is_plain;        // travels as it is
  std::uint64_t key;    // names it for random draws
  at::Tensor residual;  // the same slice of what rounding lost before; undefined: none
};
// Error feedback: what earlier rounding lost is sent with the values. The residual becomes what is
// to be sent, in float32; the values are that, rounded to their type. REQUIRES: a residual.
void add_residual(const Piece& piece);
// What is coded and sent in one go.
using Frame = std::vector<Piece>;

// A place in a list of tensors.
struct Place {
  std::size_t tensor = 0;
  std::int64_t offset = 0;
  bool operator==(const Place&) const = default;
};

// Where each of `count` shards ends: shards of about as many values each. Tensors of fewer than
// `smallest` values are not cut, others at multiples of 1,024.
std::vector<Place> shard_ends(const std::vector<std::int64_t>& lengths, int count,
                              std::int64_t smallest);

// Flat tensors of one type, with a key and perhaps a residual for each.
struct FlatTensors {
  std::vector<at::Tensor> values;
  std::vector<std::int64_t> keys;
  std::vector<at::Tensor> residuals;  // empty: none at all
};
// The pieces from `begin` to `end` in frames of at most 2^19 values.
std::vector<Frame> frames_between(const FlatTensors& tensors, Place begin, Place end,
                                  const Codec& codec);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_SHARDS_H_
