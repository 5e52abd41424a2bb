// Deltas that were written once are read for ever: those in golden/deltas, of values that are made
// of integers, and so are the same on every machine. They are also what delta() writes now.
#include <slimgrad/delta.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "for_each_target.h"
#include "formats/delta_values.h"

namespace slimgrad {
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Case {
  const char* type;
  std::size_t num_values;
  std::uint64_t one_in;      // of the values change
  std::uint64_t most_units;  // by at most as many in the last place, to either side
};
// Sparse changes in two blocks; a dense tensor; one with both; few values; one byte a value.
constexpr Case kCases[] = {{"BF16", 140'000, 200, 2},
                           {"F32", 3'000, 1, 100'000},
                           {"F16", 20'000, 3, 5},
                           {"I64", 300, 4, 1'000'000'000'000},
                           {"BOOL", 70'000, 300, 1}};

void values_of(const Case& of, Bytes& base, Bytes& changed) {
  std::mt19937_64 random(37);
  const auto& type = delta_format::kValueTypes[delta_format::type_code(of.type)];
  base.resize(of.num_values * type.width);
  // Exponents around the middle, as bell-shaped as the bits of a random number.
  const int lowest = 8 * type.width - 1 - (type.exponent_bits == 0 ? 0 : type.exponent_bits);
  for (std::size_t i = 0; i < of.num_values; ++i) {
    std::uint64_t bits = random();
    if (type.exponent_bits > 0) {
      const std::uint64_t mantissa = bits >> 20 & ((std::uint64_t{1} << lowest) - 1);
      const auto exponent = static_cast<std::uint64_t>(std::popcount(bits & 0xffff)) +
                            (type.exponent_bits == 8 ? 110 : 4);
      bits = (bits >> 63) << (8 * type.width - 1) | exponent << lowest | mantissa;
    } else if (std::string(of.type) == "BOOL") {
      bits &= 1;
    }
    std::memcpy(base.data() + i * type.width, &bits, type.width);
  }
  changed = base;
  for (std::size_t i = 0; i < of.num_values; ++i) {
    const std::uint64_t draw = random(), units = random() % of.most_units + 1;
    if (draw % of.one_in != 0) continue;
    std::uint64_t bits = 0;
    std::memcpy(&bits, base.data() + i * type.width, type.width);
    bits = draw >> 63 == 0 ? bits + units : bits - units;
    std::memcpy(changed.data() + i * type.width, &bits, type.width);
  }
}

TEST(DeltaGolden, IsReadAndWritten) {
  for (const Case& of : kCases) {
    Bytes base, changed;
    values_of(of, base, changed);
    std::ifstream file(std::string(SLIMGRAD_GOLDEN_DIR) + "/deltas/" + of.type + ".sgd",
                       std::ios::binary);
    const Bytes golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for_each_target([&](const char* target) {
      EXPECT_EQ(apply_delta(base, golden), changed) << of.type << ' ' << target;
      EXPECT_EQ(
          delta({"", of.type, {of.num_values}, base}, {"", of.type, {of.num_values}, changed}),
          golden)
          << of.type << ' ' << target;
    });
  }
}

}  // namespace
}  // namespace slimgrad
