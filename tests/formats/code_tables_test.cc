#include "formats/code_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "arrays/coding/symbols.h"
#include "kernels/coding/value_symbols.h"
#include "math/coding/frequencies.h"

namespace slimgrad {
namespace {

TEST(CodeTables, FrequenciesTravel) {
  for (const double shape : {0.3, 0.7, 2.0})
    for (const std::size_t n : {50u, 3000u, 200000u}) {
      const Weights weights = to_weights(kernels::count_bytes(gennorm_codes(shape, n)));
      const RansFrequencies f = *choose_frequencies(weights);
      std::vector<std::uint8_t> bytes(2000);
      BitWriter writer{std::span(bytes)};
      write_frequencies(f, writer);
      ASSERT_FALSE(writer.overflowed());
      EXPECT_LT(writer.num_bytes(), 200u);
      bytes.resize(writer.num_bytes());
      BitReader reader{std::span<const std::uint8_t>(bytes)};
      RansFrequencies back;
      ASSERT_TRUE(read_frequencies(reader, back));
      EXPECT_EQ(reader.num_bytes(), bytes.size());
      EXPECT_EQ(back.escape, f.escape);
      EXPECT_EQ(back.frequency, f.frequency);
      bytes.pop_back();
      BitReader cut{std::span<const std::uint8_t>(bytes)};
      EXPECT_FALSE(read_frequencies(cut, back));
    }
}

TEST(CodeTables, LengthsTravel) {
  for (const double shape : {0.3, 0.7, 2.0}) {
    const Weights weights = to_weights(kernels::count_bytes(gennorm_codes(shape, 3000)));
    const HuffmanLengths lengths = huffman_lengths(weights);
    std::vector<std::uint8_t> bytes(2000);
    BitWriter writer{std::span(bytes)};
    write_lengths(lengths, writer);
    ASSERT_FALSE(writer.overflowed());
    bytes.resize(writer.num_bytes());
    BitReader reader{std::span<const std::uint8_t>(bytes)};
    HuffmanLengths back;
    ASSERT_TRUE(read_lengths(reader, back));
    EXPECT_EQ(reader.num_bytes(), bytes.size());
    EXPECT_EQ(back, lengths);
    bytes.pop_back();
    BitReader cut{std::span<const std::uint8_t>(bytes)};
    EXPECT_FALSE(read_lengths(cut, back));
  }
}

}  // namespace
}  // namespace slimgrad
