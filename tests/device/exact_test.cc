// What backward keeps exactly, on devices: bytes that the CPU reads, and those of the CPU.
#include "device/exact.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "arrays/saved/saved.h"
#include "device/emulate.h"

namespace slimgrad::device {
namespace {

void one_by_one(std::int64_t num_tasks, const std::function<void(std::int64_t)>& run) {
  for (std::int64_t i = 0; i < num_tasks; ++i) run(i);
}

template <typename Word>
Array<Word> some_zeros(std::size_t size, std::size_t shift, int share, bool same) {
  std::mt19937 engine(static_cast<unsigned>(size + shift));
  Array<Word> words(size, shift);
  for (Word& word : words.span())
    if (static_cast<int>(engine() % 100) < share)
      word = same ? static_cast<Word>(0x3f80) : static_cast<Word>(engine() | 1u);
  return words;
}

template <typename Word>
class DeviceExact : public ::testing::Test {};
using Words = ::testing::Types<std::uint16_t, std::uint32_t>;
TYPED_TEST_SUITE(DeviceExact, Words);

TYPED_TEST(DeviceExact, SplitsAndMergesAsTheCpu) {
  using Word = TypeParam;
  constexpr std::size_t kWidth = sizeof(Word);
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{2049},
                                 exact::kTaskValues, 2 * exact::kTaskValues + 77})
    for (const std::size_t shift : {0, 1})
      for (const int share : {0, 1, 30, 100})
        for (const bool same : {false, true}) {
          const Array<Word> in = some_zeros<Word>(size, shift, share, same);
          std::vector<ExactCount> counts(exact::num_tasks(size));
          const auto shuffle = static_cast<std::uint32_t>(size % 4);
          launch<CountSurvivors<Word>>({in.data(), size, counts.data()}, shuffle);
          const ExactLayout layout = exact_layout(in.data(), size, kWidth, one_by_one);
          std::uint32_t smallest = 0xffffffffu, largest = 0;
          for (std::size_t task = 0; task < counts.size(); ++task) {
            ASSERT_EQ(layout.begins[task + 1] - layout.begins[task],
                      exact::survivor_bytes(counts[task].num_survivors, kWidth));
            smallest = std::min(smallest, counts[task].smallest);
            largest = std::max(largest, counts[task].largest);
          }
          const auto survivor = only_survivor(in.data(), size, kWidth, one_by_one);
          const bool is_one = largest == 0 || smallest == largest;
          ASSERT_EQ(survivor.has_value(), is_one);
          if (is_one) {
            ASSERT_EQ(*survivor, largest);
          }

          std::vector<std::uint8_t> expected(is_one ? exact::mask_bytes(size) : layout.num_bytes());
          std::vector<std::uint8_t> bytes(expected.size());
          if (is_one) {
            keep_mask(in.data(), size, kWidth, *survivor, one_by_one, expected);
            std::memcpy(bytes.data(), expected.data(), exact::kOneSurvivorHead);
          } else {
            pack_exactly(in.data(), size, kWidth, layout, one_by_one, expected);
            std::memcpy(bytes.data(), expected.data(), exact::head_bytes(size));
            // What is unused may be anything.
            for (std::size_t task = 0; task < counts.size(); ++task)
              std::fill(
                  expected.begin() + static_cast<std::ptrdiff_t>(
                                         layout.begins[task] + counts[task].num_survivors * kWidth),
                  expected.begin() + static_cast<std::ptrdiff_t>(layout.begins[task + 1]), 0);
          }
          launch<SplitExact<Word>>(
              {in.data(), size, is_one ? nullptr : layout.begins.data(), bytes.data()}, shuffle);
          ASSERT_TRUE(same_bits(expected, bytes)) << size << " " << shift << " " << share;

          Array<Word> merged(size, shift);
          launch<MergeExact<Word>>({bytes.data(), bytes.size(), merged.data(), size}, shuffle);
          ASSERT_TRUE(same_bits(in, merged)) << size << " " << shift << " " << share;
        }
}

// Bytes that are cut off or changed anywhere are read without leaving them (a sanitizer looks).
TYPED_TEST(DeviceExact, ReadsDamagedBytesWithoutLeavingThem) {
  using Word = TypeParam;
  const std::size_t size = exact::kTaskValues + 500;
  const Array<Word> in = some_zeros<Word>(size, 0, 40, false);
  const ExactLayout layout = exact_layout(in.data(), size, sizeof(Word), one_by_one);
  std::vector<std::uint8_t> whole(layout.num_bytes());
  pack_exactly(in.data(), size, sizeof(Word), layout, one_by_one, whole);
  Array<Word> out(size, 0);
  const auto has_nan = [&] {
    const Word nan = static_cast<Word>(Word{0x7fc0} << (8 * sizeof(Word) - 16));
    return std::ranges::count(out.span(), nan) > 0;
  };
  launch<MergeExact<Word>>({whole.data(), whole.size(), out.data(), size});
  ASSERT_FALSE(has_nan());
  for (const std::size_t left : {std::size_t{0}, std::size_t{8}, std::size_t{16}, std::size_t{100},
                                 whole.size() / 2, whole.size() - 1}) {
    const std::vector<std::uint8_t> bytes(whole.begin(),
                                          whole.begin() + static_cast<std::ptrdiff_t>(left));
    launch<MergeExact<Word>>({bytes.data(), bytes.size(), out.data(), size});
    EXPECT_TRUE(has_nan()) << left;
  }
  std::vector<std::uint8_t> longer = whole;
  longer.resize(whole.size() + 16);
  launch<MergeExact<Word>>({longer.data(), longer.size(), out.data(), size});
  EXPECT_TRUE(has_nan());
  // Each bit of the table of begins, as the CPU refuses it.
  for (std::size_t bit = 0; bit < 8 * exact::head_bytes(size); ++bit) {
    std::vector<std::uint8_t> bytes = whole;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    launch<MergeExact<Word>>({bytes.data(), bytes.size(), out.data(), size});
    EXPECT_TRUE(has_nan()) << bit;
  }
  std::mt19937 engine(3);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::uint8_t> bytes = whole;
    for (int k = 0; k < 4; ++k)
      bytes[engine() % (i % 2 == 0 ? 24 : bytes.size())] ^= static_cast<std::uint8_t>(engine());
    launch<MergeExact<Word>>({bytes.data(), bytes.size(), out.data(), size});
  }
}

// One survivor, whose masks are cut off or whose head is changed.
TYPED_TEST(DeviceExact, DamagedMasksOfOneSurvivorBecomeNan) {
  using Word = TypeParam;
  const std::size_t size = 1000;
  const Array<Word> in = some_zeros<Word>(size, 0, 40, true);
  const auto survivor = only_survivor(in.data(), size, sizeof(Word), one_by_one);
  ASSERT_TRUE(survivor);
  std::vector<std::uint8_t> whole(exact::mask_bytes(size));
  keep_mask(in.data(), size, sizeof(Word), *survivor, one_by_one, whole);
  const Word nan = static_cast<Word>(Word{0x7fc0} << (8 * sizeof(Word) - 16));
  Array<Word> out(size, 0);
  const auto num_nans = [&](const std::vector<std::uint8_t>& bytes) {
    launch<MergeExact<Word>>({bytes.data(), bytes.size(), out.data(), size});
    return std::ranges::count(out.span(), nan);
  };
  EXPECT_EQ(num_nans(whole), 0);
  EXPECT_EQ(num_nans({whole.begin(), whole.end() - 1}), 1000);
  for (const std::size_t byte : {std::size_t{0}, std::size_t{7}, std::size_t{12}}) {
    std::vector<std::uint8_t> bytes = whole;
    bytes[byte] ^= 1;
    EXPECT_EQ(num_nans(bytes), 1000) << byte;
  }
}

}  // namespace
}  // namespace slimgrad::device
