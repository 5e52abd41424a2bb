// Packing what backward keeps, on devices: the words and the values of the CPU.
#include "device/saved.h"

#include <gtest/gtest.h>

#include "device/emulate.h"
#include "kernels/saved/saved.h"

namespace slimgrad::device {
namespace {

template <typename T, int kBits>
void test_saved(std::size_t size, std::size_t shift, Kind kind, std::size_t group,
                bool is_stochastic) {
  const saved::Format format{kBits, group, is_stochastic};
  const std::uint64_t seed = 77 * group + size;
  const Array<T> x = make_values<T>(size, shift, kind, 1);
  const std::size_t num_words = saved::num_words(size, format);
  Array<std::uint32_t> expected(num_words, 0), words(num_words, 0);
  expected[num_words - 1] = static_cast<std::uint32_t>(
      kernels::pack_saved<T>(x.span(), format, RandomStream(seed, Stream::kSaved), 0,
                             expected.data(), expected.data() + saved::code_words(size, kBits)));
  const auto shuffle = static_cast<std::uint32_t>(group % 5);
  launch<PackSaved<T, kBits>>({x.data(), words.data(), size, seed,
                               static_cast<std::uint32_t>(group), is_stochastic ? 1u : 0u},
                              shuffle);
  const std::string message = describe<T>(size, shift, kind) + ", " + std::to_string(kBits) +
                              " bits, groups of " + std::to_string(group);
  ASSERT_TRUE(same_bits(expected, words)) << message;

  Array<T> values(size, 0), got(size, shift);
  kernels::unpack_saved<T>(words.data(), words.data() + saved::code_words(size, kBits), format,
                           values.span());
  launch<UnpackSaved<T, kBits>>({words.data(), got.data(), size, static_cast<std::uint32_t>(group)},
                                shuffle);
  ASSERT_TRUE(same_bits(values, got)) << message;
}

template <typename T>
class DeviceSaved : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceSaved, ValueTypes);

TYPED_TEST(DeviceSaved, HasTheWordsAndValuesOfTheCpu) {
  std::size_t number = 0;
  for_all_cases([&](std::size_t size, std::size_t shift, Kind kind) {
    for (std::size_t group = saved::kLeastGroup; group <= saved::kLargestGroup; group *= 2) {
      const bool is_stochastic = ++number % 3 != 0;
      test_saved<TypeParam, 8>(size, shift, kind, group, is_stochastic);
      test_saved<TypeParam, 4>(size, shift, kind, group, is_stochastic);
      test_saved<TypeParam, 2>(size, shift, kind, group, is_stochastic);
    }
  });
}

}  // namespace
}  // namespace slimgrad::device
