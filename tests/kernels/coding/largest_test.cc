// The places of the largest magnitudes, on every CPU target.
#include "kernels/coding/largest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "for_each_target.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

// By sorting everything.
template <typename T>
std::vector<std::uint16_t> sorted_places(const std::vector<T>& values, std::size_t count) {
  std::vector<std::uint16_t> places(values.size());
  std::iota(places.begin(), places.end(), 0);
  const auto magnitude = [&](std::uint16_t i) { return kernels::magnitude_bits(values[i]); };
  std::stable_sort(places.begin(), places.end(),
                   [&](auto i, auto k) { return magnitude(i) > magnitude(k); });
  places.resize(std::min(count, places.size()));
  std::erase_if(places, [&](auto i) { return magnitude(i) == 0; });
  std::ranges::sort(places);
  return places;
}

template <typename T>
void expect_same(const std::vector<T>& values, std::size_t count) {
  const auto scratch = std::make_unique<kernels::LargestScratch>();
  std::vector<std::uint16_t> places(count + 1, 0xffff);
  const std::size_t found =
      kernels::largest_places(std::span<const T>(values), count, *scratch, places.data());
  ASSERT_EQ(places.back(), 0xffff);
  places.resize(found);
  ASSERT_EQ(places, sorted_places(values, count)) << values.size() << " values, " << count;
}

template <typename T>
void try_everything(std::mt19937& random) {
  const auto value = [](float x) { return kernels::from_float<T>(x); };
  for (const std::size_t size : {1u, 16u, 63u, 500u, 1000u, 4095u, 4096u})
    for (const std::size_t count : {1u, 7u, 64u, 100u, 600u, 4096u}) {
      if (count > size) continue;
      for (const std::string what : {"tail", "ties", "zeros", "few", "tiny", "rising"}) {
        std::vector<T> values(size);
        for (std::size_t i = 0; i < size; ++i) {
          const float u = static_cast<float>(random()) * 0x1p-32f;
          float x = -std::log(u + 1e-9f);
          if (what == "ties") x = static_cast<float>(random() % 3);
          if (what == "zeros") x = 0;
          if (what == "few" && random() % 100 != 0) x = 0;
          if (what == "tiny") x *= sizeof(T) == 4 ? 1e-41f : 1e-7f;
          if (what == "rising") x = static_cast<float>(i);
          values[i] = value((random() & 1) != 0 ? -x : x);
        }
        expect_same(values, count);
      }
    }
}

TEST(Largest, PlacesAreThoseOfSorting) {
  for_each_target([](const char*) {
    std::mt19937 random(11);
    try_everything<float>(random);
    try_everything<BFloat16Bits>(random);
    try_everything<Float16Bits>(random);
  });
}

}  // namespace
}  // namespace slimgrad
