#include "kernels/escapes.h"

#include <gtest/gtest.h>

#include "codecs/symbols.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

TEST(Escapes, ASetHoldsWhatWasInserted) {
  ByteSet set;
  for (int byte = 0; byte < 256; byte += 3) set.insert(static_cast<std::uint8_t>(byte));
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(set.contains(static_cast<std::uint8_t>(byte)), byte % 3 == 0) << byte;
}

TEST(Escapes, GoOutAndComeBackWithEveryKernelSet) {
  for (const std::size_t n : {0u, 1u, 31u, 64u, 1000u, 4099u, 9000u})
    for (const int rarity : {1, 2, 5, 250}) {
      const auto symbols = uniform_codes(256, n, n + 1);
      ByteSet rare;
      std::vector<std::uint8_t> expected, stream = symbols;
      for (int s = 0; s < 256; s += rarity) rare.insert(static_cast<std::uint8_t>(s));
      for (std::uint8_t& symbol : stream)
        if (symbol % rarity == 0) {
          expected.push_back(symbol);
          symbol = 0;  // the escape
        }
      for (const std::string& set : kernels::kernel_sets()) {
        kernels::select_kernel_set(set);
        std::vector<std::uint8_t> values(expected.size());
        EXPECT_EQ(copy_escapes(symbols, rare, values.data()), expected.size()) << set;
        EXPECT_EQ(values, expected) << set;
        std::vector<std::uint8_t> back = stream;
        EXPECT_TRUE(put_escapes(back, 0, values)) << set;
        EXPECT_EQ(back, symbols) << set;
        values.push_back(9);
        back = stream;
        EXPECT_FALSE(put_escapes(back, 0, values)) << set << ": one value too many";
        if (expected.empty()) continue;
        values.resize(expected.size() - 1);
        back = stream;
        EXPECT_FALSE(put_escapes(back, 0, values)) << set << ": one value too few";
      }
      kernels::select_kernel_set("best");
    }
}

}  // namespace
}  // namespace slimgrad
