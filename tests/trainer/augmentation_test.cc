#include "trainer/augmentation.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace slimgrad::trainer {
namespace {

constexpr SampleShape kShape{.channels = 2, .height = 12, .width = 10, .classes = 2};

std::vector<std::uint8_t> image() {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(kShape.bytes()));
  std::iota(values.begin(), values.end(), std::uint8_t{1});  // 1 to 240: none is black
  return values;
}

std::string augmented(std::uint32_t epoch, std::uint64_t index) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(kShape.bytes()), 255);
  crop_and_flip(image(), kShape, 7, epoch, index, out);
  return {out.begin(), out.end()};
}

// By brute force: the image in the middle of a black one, cut out at every place, both ways.
TEST(Augmentation, IsAWindowOfThePaddedImage) {
  std::map<std::string, std::tuple<int, int, bool>> windows;
  const auto values = image();
  for (int down = -4; down <= 4; ++down)
    for (int right = -4; right <= 4; ++right)
      for (const bool mirrored : {false, true}) {
        std::string window(values.size(), '\0');
        for (int c = 0; c < 2; ++c)
          for (int y = 0; y < 12; ++y)
            for (int x = 0; x < 10; ++x) {
              const int from_y = y + down, from_x = (mirrored ? 9 - x : x) + right;
              if (from_y >= 0 && from_y < 12 && from_x >= 0 && from_x < 10)
                window[static_cast<std::size_t>((c * 12 + y) * 10 + x)] = static_cast<char>(
                    values[static_cast<std::size_t>((c * 12 + from_y) * 10 + from_x)]);
            }
        windows[window] = {down, right, mirrored};
      }
  ASSERT_EQ(windows.size(), 162u);
  std::map<std::tuple<int, int, bool>, int> seen;
  constexpr int kDraws = 8100;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const auto found = windows.find(augmented(1, i));
    ASSERT_NE(found, windows.end());
    ++seen[found->second];
  }
  EXPECT_EQ(seen.size(), 162u);
  // 50 each, with a standard deviation of 7.
  for (const auto& [where, count] : seen) EXPECT_NEAR(count, 50, 35);
}

TEST(Augmentation, FollowsFromSeedEpochAndIndex) {
  EXPECT_EQ(augmented(1, 5), augmented(1, 5));
  std::set<std::string> all;
  for (std::uint32_t epoch = 1; epoch <= 8; ++epoch) all.insert(augmented(epoch, 5));
  EXPECT_GT(all.size(), 5u);
}

}  // namespace
}  // namespace slimgrad::trainer
