#include "arrays/coding/checksum.h"

#include <gtest/gtest.h>

#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "arrays/coding/symbols.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

// Every set of kernels against xxHash as this file's compiler options make it.
void expect_equal(std::span<const std::uint8_t> bytes) {
  const std::uint64_t expected = XXH3_64bits(bytes.data(), bytes.size());
  for (const std::string& set : kernels::kernel_sets()) {
    kernels::select_kernel_set(set);
    EXPECT_EQ(checksum(bytes), expected) << set << ", " << bytes.size() << " bytes";
  }
  kernels::select_kernel_set("best");
}

TEST(Checksum, IsThatOfXxhashForAllSizes) {
  const std::vector<std::uint8_t> bytes = uniform_codes(256, 2001, 1);
  for (std::size_t size = 0; size <= 2000; ++size) expect_equal(std::span(bytes).first(size));
}

TEST(Checksum, IsThatOfXxhashAtAllAlignments) {
  const std::vector<std::uint8_t> bytes = uniform_codes(256, 3'000'100, 2);
  for (std::size_t offset = 0; offset < 64; ++offset) {
    expect_equal(std::span(bytes).subspan(offset, 5000 + offset));
    expect_equal(std::span(bytes).subspan(offset, 3'000'000));
  }
}

// What the sums are of does not tell which version made them; this does.
TEST(Checksum, UsesOnlyTheSelectedKernelSet) {
  for (const std::string& set : kernels::kernel_sets()) {
    kernels::select_kernel_set(set);
    EXPECT_EQ(kernels::use_scalar(), set == "scalar") << set;
    EXPECT_EQ(kernels::use_avx2(), set.starts_with("avx")) << set;
  }
  kernels::select_kernel_set("best");
  EXPECT_FALSE(kernels::use_scalar());
}

// The example of the empty input in xxHash's own documentation of the algorithm.
TEST(Checksum, OfNothing) { EXPECT_EQ(checksum({}), 0x2d06800538d394c2u); }

}  // namespace
}  // namespace slimgrad
