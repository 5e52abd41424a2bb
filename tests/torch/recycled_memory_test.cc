#include "torch/recycled_memory.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace slimgrad::torch_ops {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

at::Tensor unpacked(std::int64_t mebibytes) {
  return recycled_empty_unpacked({mebibytes * kMebi / 4}, {1}, at::kFloat);
}
at::Tensor gradient(std::int64_t mebibytes) {
  return recycled_empty({mebibytes * kMebi / 4}, at::kFloat, at::MemoryFormat::Contiguous);
}

class RecycledMemory : public testing::Test {
 protected:
  void SetUp() override { release_recycled(); }
  void TearDown() override { release_recycled(); }
};

TEST_F(RecycledMemory, OfGradientsServesItsOwnSize) {
  const void* const four = gradient(4).data_ptr();
  EXPECT_EQ(recycled_bytes(), 4 * kMebi);
  EXPECT_NE(gradient(2).data_ptr(), four);
  EXPECT_EQ(recycled_bytes(), 6 * kMebi);
  EXPECT_EQ(gradient(4).data_ptr(), four);
  gradient(8);
  EXPECT_EQ(recycled_bytes(), 14 * kMebi);
  EXPECT_EQ(release_recycled(), 14 * kMebi);
  EXPECT_EQ(recycled_bytes(), 0);
}

TEST_F(RecycledMemory, OfUnpackedServesSmallerOnesToo) {
  const void* const eight = unpacked(8).data_ptr();
  {
    const at::Tensor two = unpacked(2);
    EXPECT_EQ(two.data_ptr(), eight);
    EXPECT_EQ(two.nbytes(), 2 * kMebi);
    EXPECT_EQ(recycled_bytes(), 0);  // All eight are in use.
  }
  EXPECT_EQ(recycled_bytes(), 8 * kMebi);
}

TEST_F(RecycledMemory, OfUnpackedTakesTheSmallestThatIsLargeEnough) {
  const void *four, *eight;
  {
    const at::Tensor first = unpacked(8), second = unpacked(4);
    eight = first.data_ptr(), four = second.data_ptr();
  }
  const at::Tensor three = unpacked(3), five = unpacked(5);
  EXPECT_EQ(three.data_ptr(), four);
  EXPECT_EQ(five.data_ptr(), eight);
}

TEST_F(RecycledMemory, OfUnpackedGoesBeforeMoreIsTaken) {
  { const at::Tensor first = unpacked(4), second = unpacked(4); }
  EXPECT_EQ(recycled_bytes(), 8 * kMebi);
  const at::Tensor large = unpacked(6);
  EXPECT_EQ(recycled_bytes(), 0);
}

TEST_F(RecycledMemory, OfUnpackedIsLimited) {
  { const at::Tensor first = unpacked(20), second = unpacked(20); }
  EXPECT_EQ(recycled_bytes(), 20 * kMebi);
  unpacked(static_cast<std::int64_t>(kMostUnpackedCached) / kMebi + 1);
  EXPECT_EQ(recycled_bytes(), 0);
}

TEST_F(RecycledMemory, LeavesSmallResultsToTorch) {
  recycled_empty_unpacked({static_cast<std::int64_t>(kLeastKept) / 4 - 1}, {1}, at::kFloat);
  EXPECT_EQ(recycled_bytes(), 0);
}

}  // namespace
}  // namespace slimgrad::torch_ops
