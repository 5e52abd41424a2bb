#include "runtime/exchange/shards.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include <slimgrad/seed.h>

namespace slimgrad::exchange {
namespace {

TEST(Shards, CoverEverythingOnce) {
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  for (int trial = 0; trial < 60; ++trial) {
    Codec codec;
    codec.min_elements = std::array<int, 3>{0, 100, 4096}[static_cast<std::size_t>(draw(0, 2))];
    FlatTensors tensors;
    std::vector<std::int64_t> lengths;
    for (int i = draw(0, 8); i > 0; --i) {
      lengths.push_back(draw(1, 40'000));
      tensors.keys.push_back(static_cast<std::int64_t>(tensors.keys.size()));
      tensors.values.push_back(at::arange(lengths.back(), at::kFloat));
    }
    const int count = draw(1, 5);
    const std::vector<Place> ends = shard_ends(lengths, count, codec.min_elements);
    ASSERT_EQ(ends.size(), static_cast<std::size_t>(count));
    // Where the next piece has to begin.
    std::size_t tensor = 0;
    std::int64_t offset = 0;
    std::set<std::uint64_t> keys;
    Place begin;
    for (const Place& end : ends) {
      for (const Frame& frame : frames_between(tensors, begin, end, codec)) {
        std::int64_t values = 0;
        for (const Piece& piece : frame) {
          const std::int64_t length = piece.values.numel();
          values += length;
          ASSERT_LT(tensor, lengths.size());
          EXPECT_EQ(piece.values[0].item<std::int64_t>(), offset);
          EXPECT_EQ(piece.key, derive_seed(tensor, {offset}));
          EXPECT_TRUE(keys.insert(piece.key).second);
          EXPECT_EQ(piece.is_plain, lengths[tensor] < codec.min_elements);
          if (piece.is_plain) {
            EXPECT_EQ(length, lengths[tensor]);
          }
          offset += length;
          if (offset == lengths[tensor]) ++tensor, offset = 0;
        }
        EXPECT_GT(values, 0);
        EXPECT_LE(values, 1 << 19);
      }
      begin = end;
    }
    EXPECT_EQ(tensor, lengths.size());
  }
}

}  // namespace
}  // namespace slimgrad::exchange
