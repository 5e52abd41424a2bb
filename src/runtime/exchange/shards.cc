#include "runtime/exchange/shards.h"

#include <algorithm>
#include <numeric>

#include <slimgrad/seed.h>

namespace slimgrad::exchange {
namespace {

// 2 MiB of float32, a quarter of a MiB and more when coded. So the first bytes leave after a
// millisecond, and what a rank works on stays in cache.
constexpr std::int64_t kFrameValues = 1 << 19;
// Where a shard may cut a tensor.
constexpr std::int64_t kCut = 1024;

}  // namespace

void add_residual(const Piece& piece) {
  piece.residual.add_(piece.values);
  piece.values.copy_(piece.residual);
}

std::vector<Place> shard_ends(const std::vector<std::int64_t>& lengths, int count,
                              std::int64_t smallest) {
  const auto total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<Place> ends;
  std::size_t tensor = 0;
  std::int64_t before = 0;  // values of the tensors before it
  for (int shard = 1; shard < count; ++shard) {
    // total * shard / count, which does not overflow.
    const std::int64_t target = total / count * shard + total % count * shard / count;
    while (tensor < lengths.size() && before + lengths[tensor] <= target)
      before += lengths[tensor++];
    std::int64_t offset = target - before;
    if (tensor < lengths.size()) {
      const bool is_whole = lengths[tensor] < std::max(smallest, 2 * kCut);
      offset = is_whole ? 0 : offset / kCut * kCut;
    }
    ends.push_back({tensor, offset});
  }
  ends.push_back({lengths.size(), 0});
  return ends;
}

std::vector<Frame> frames_between(const FlatTensors& tensors, Place begin, Place end,
                                  const Codec& codec) {
  std::vector<Frame> frames;
  std::int64_t room = 0;
  for (std::size_t i = begin.tensor; i < std::min(end.tensor + 1, tensors.values.size()); ++i) {
    const at::Tensor& flat = tensors.values[i];
    std::int64_t first = i == begin.tensor ? begin.offset : 0;
    const std::int64_t last = i == end.tensor ? end.offset : flat.numel();
    const bool is_plain = flat.numel() < codec.min_elements;
    const bool has_residual =
        !is_plain && !tensors.residuals.empty() && tensors.residuals[i].defined();
    while (first < last) {
      if (room == 0 || (last - first > room && room < kFrameValues / 2)) {
        frames.emplace_back();
        room = kFrameValues;
      }
      const std::int64_t count = std::min(last - first, room);
      frames.back().push_back(
          {.values = flat.narrow(0, first, count),
           .is_plain = is_plain,
           .key = derive_seed(static_cast<std::uint64_t>(tensors.keys[i]), {first}),
           .residual = has_residual ? tensors.residuals[i].narrow(0, first, count) : at::Tensor()});
      first += count;
      room -= count;
    }
  }
  return frames;
}

}  // namespace slimgrad::exchange
