#include "math/coding/huffman_lengths.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <vector>

namespace slimgrad {
namespace {

std::uint64_t cost(const Weights& weights, const HuffmanLengths& lengths) {
  std::uint64_t sum = 0;
  for (int s = 0; s < 256; ++s) sum += weights[s] * lengths[s];
  return sum;
}

// The best cost over all complete codes of m words within the limit, by trying every multiset of
// lengths: sorted weights take sorted lengths.
std::uint64_t brute_force(std::vector<std::uint64_t> weights, int limit) {
  std::sort(weights.rbegin(), weights.rend());
  std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
  const std::function<void(std::size_t, int, std::uint64_t, std::uint64_t)> go =
      [&](std::size_t i, int shortest, std::uint64_t room, std::uint64_t sum) {
        if (i == weights.size()) {
          if (room == 0) best = std::min(best, sum);
          return;
        }
        for (int length = shortest; length <= limit; ++length) {
          const std::uint64_t take = std::uint64_t{1} << (limit - length);
          if (take <= room) go(i + 1, length, room - take, sum + weights[i] * length);
        }
      };
  go(0, 1, std::uint64_t{1} << limit, 0);
  return best;
}

TEST(HuffmanLengths, OptimalUnderTheLimitAgainstBruteForce) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t m = 2 + random() % 9;
    Weights weights = {};
    std::vector<std::uint64_t> list;
    for (std::size_t i = 0; i < m; ++i) {
      // Spread over many orders of magnitude, so that the limit binds.
      const std::uint64_t w = 1 + (random() >> (24 + random() % 40)) % (1u << 30);
      weights[(i * 37 + 5) % 256] = w;
      list.push_back(w);
    }
    // With fewer than 11 words a limit of 8 binds only sometimes; both cases occur.
    const HuffmanLengths lengths = huffman_lengths(weights, 8);
    EXPECT_TRUE(is_valid(lengths));
    EXPECT_EQ(cost(weights, lengths), brute_force(list, 8));
  }
}

TEST(HuffmanLengths, PlainHuffmanWhereTheLimitDoesNotBind) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 50; ++trial) {
    Weights weights;
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap;
    for (auto& w : weights) heap.push(w = 500 + random() % 1000);
    std::uint64_t expected = 0;
    while (heap.size() > 1) {
      std::uint64_t sum = heap.top();
      heap.pop();
      sum += heap.top();
      heap.pop();
      expected += sum;
      heap.push(sum);
    }
    EXPECT_EQ(cost(weights, huffman_lengths(weights)), expected);
  }
}

TEST(HuffmanLengths, ExtremeWeights) {
  Weights weights = {};
  weights[7] = 1;
  weights[200] = std::uint64_t{1} << 50;
  HuffmanLengths lengths = huffman_lengths(weights);
  EXPECT_EQ(lengths[7], 1);
  EXPECT_EQ(lengths[200], 1);
  // Fibonacci weights would need words of 30 bits.
  weights = {};
  std::uint64_t a = 1, b = 1;
  for (int s = 0; s < 60; ++s) {
    weights[s] = a;
    b += std::exchange(a, b);
  }
  lengths = huffman_lengths(weights);
  EXPECT_TRUE(is_valid(lengths));
  // All 256 with weights from 1 to 2^40: the limit leaves little choice but must hold.
  for (int s = 0; s < 256; ++s) weights[s] = std::uint64_t{1} << s % 41;
  EXPECT_TRUE(is_valid(huffman_lengths(weights)));
}

}  // namespace
}  // namespace slimgrad
