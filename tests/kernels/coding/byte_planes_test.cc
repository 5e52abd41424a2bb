#include "kernels/coding/byte_planes.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "for_each_target.h"

namespace slimgrad::kernels {
namespace {

using Planes = std::array<std::vector<std::uint8_t>, kMaxPlanes>;

template <typename Word>
std::vector<Word> words(std::size_t n) {
  std::mt19937_64 random(n + sizeof(Word));
  std::vector<Word> result(n);
  for (Word& word : result) word = static_cast<Word>(random());
  return result;
}

// By the definition: the top byte of the rotated value first.
template <typename Word>
Planes plain_planes(const std::vector<Word>& values) {
  Planes planes;
  for (const Word value : values) {
    const Word rotated = sizeof(Word) == 1 ? value : std::rotl(value, 1);
    for (std::size_t p = 0; p < sizeof(Word); ++p)
      planes[p].push_back(static_cast<std::uint8_t>(rotated >> 8 * (sizeof(Word) - 1 - p)));
  }
  return planes;
}

// Values and planes begin anywhere: payloads are not aligned.
template <typename Word>
void expect_split_and_merged(std::size_t n, std::size_t offset) {
  constexpr std::uint8_t kUntouched = 0xa5;
  const std::vector<Word> values = words<Word>(n);
  const Planes expected = plain_planes(values);
  std::vector<std::uint8_t> unaligned(offset + n * sizeof(Word));
  std::copy_n(reinterpret_cast<const std::uint8_t*>(values.data()), n * sizeof(Word),
              unaligned.data() + offset);
  for_each_target([&](const char* target) {
    Planes planes;
    std::array<std::uint8_t*, kMaxPlanes> to = {};
    std::array<const std::uint8_t*, kMaxPlanes> from = {};
    for (std::size_t p = 0; p < sizeof(Word); ++p) {
      planes[p].assign(offset + n + 1, kUntouched);
      from[p] = to[p] = planes[p].data() + offset;
    }
    split_planes(unaligned.data() + offset, n, sizeof(Word), to);
    std::vector<std::uint8_t> back(unaligned.size() + 1, kUntouched);
    merge_planes(from, n, sizeof(Word), back.data() + offset);
    EXPECT_TRUE(std::equal(unaligned.begin() + static_cast<std::ptrdiff_t>(offset), unaligned.end(),
                           back.begin() + static_cast<std::ptrdiff_t>(offset)))
        << target;
    EXPECT_EQ(back.back(), kUntouched) << target;
    for (std::size_t p = 0; p < sizeof(Word); ++p) {
      EXPECT_EQ(planes[p].back(), kUntouched) << target;
      planes[p].pop_back();
      planes[p].erase(planes[p].begin(), planes[p].begin() + static_cast<std::ptrdiff_t>(offset));
      EXPECT_EQ(planes[p], expected[p]) << target << ", plane " << p;
    }
  });
}

TEST(BytePlanes, SplitAndMergeOnEveryTarget) {
  for (const std::size_t n : {0u, 1u, 7u, 15u, 16u, 31u, 33u, 63u, 64u, 65u, 127u, 129u, 1000u})
    for (const std::size_t offset : {0u, 1u}) {
      SCOPED_TRACE(testing::Message() << n << " values from " << offset);
      expect_split_and_merged<std::uint8_t>(n, offset);
      expect_split_and_merged<std::uint16_t>(n, offset);
      expect_split_and_merged<std::uint32_t>(n, offset);
      expect_split_and_merged<std::uint64_t>(n, offset);
    }
}

TEST(BytePlanes, TheFirstPlaneOfFloatsIsTheirExponents) {
  const std::vector<float> values = {1.0f, -1.0f, 0x1.8p-3f, -0x1.fp10f, 0.0f};
  std::vector<std::uint8_t> planes[4];
  for (auto& plane : planes) plane.resize(values.size());
  split_planes(values.data(), values.size(), 4,
               {planes[0].data(), planes[1].data(), planes[2].data(), planes[3].data()});
  EXPECT_EQ(planes[0], (std::vector<std::uint8_t>{127, 127, 124, 137, 0}));
}

}  // namespace
}  // namespace slimgrad::kernels
