#include "kernels/coding/nonzeros.h"

#include <gtest/gtest.h>

#include "arrays/coding/symbols.h"

namespace slimgrad::kernels {
namespace {

// Words of which a given share is zero; every other one has a single bit, the sign's among them.
template <typename Word>
std::vector<Word> words(std::size_t n, double zeros) {
  std::mt19937_64 random(n + 1);
  std::uniform_real_distribution<double> uniform;
  std::vector<Word> result(n);
  for (Word& word : result)
    if (uniform(random) >= zeros)
      word = static_cast<Word>(std::uint64_t{1} << random() % (8 * sizeof(Word)));
  return result;
}

template <typename Word>
void expect_split_and_merged(std::size_t n, double zeros) {
  const std::vector<Word> all = words<Word>(n, zeros);
  std::vector<std::uint8_t> masks((n + 7) / 8);
  std::vector<Word> others;
  for (std::size_t i = 0; i < n; ++i)
    if (all[i] != 0) {
      masks[i / 8] = static_cast<std::uint8_t>(masks[i / 8] | 1u << i % 8);
      others.push_back(all[i]);
    }
  for_each_target([&](const char* target) {
    std::vector<std::uint8_t> found_masks(masks.size(), 0xff);
    std::vector<Word> found(n + kNonzerosSlack / sizeof(Word)), back(n, Word{7});
    ASSERT_EQ(split_nonzeros(all.data(), n, sizeof(Word), found_masks.data(), found.data()),
              others.size())
        << target;
    EXPECT_EQ(found_masks, masks) << target;
    found.resize(others.size());
    EXPECT_EQ(found, others) << target;
    found.resize(others.size() + kNonzerosSlack / sizeof(Word));
    merge_nonzeros(masks.data(), found.data(), sizeof(Word), back.data(), n);
    EXPECT_EQ(back, all) << target;
  });
}

TEST(Nonzeros, GoOutAndComeBackOnEveryTarget) {
  for (const double zeros : {0.0, 0.3, 0.85, 1.0})
    for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 63u, 1000u, 4099u}) {
      expect_split_and_merged<std::uint16_t>(n, zeros);
      expect_split_and_merged<std::uint32_t>(n, zeros);
    }
}

}  // namespace
}  // namespace slimgrad::kernels
