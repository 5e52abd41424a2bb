#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <slimgrad/error.h>
#include <slimgrad/saved_tensors.h>

namespace slimgrad {
namespace {

TEST(SavedTensor, ComesBackWithItsShapeAndStrides) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x =
        at::randn({8, 16, 9, 9}).to(type).contiguous(at::MemoryFormat::ChannelsLast);
    for (const int bits : {8, 4, 2}) {
      const SavedTensor kept(x, {.bits = bits}, 1);
      const at::Tensor back = kept.unpack();
      EXPECT_EQ(back.strides(), x.strides());
      EXPECT_EQ(back.scalar_type(), type);
      EXPECT_FALSE(kept.is_plain());
      EXPECT_LT(kept.bytes(), x.nbytes());
      const double spread = 8.0 / ((1 << bits) - 1);  // of a group, in steps
      EXPECT_LT((back - x).abs().max().item<double>(), 1.5 * spread);
      EXPECT_TRUE(at::equal(back, SavedTensor(x, {.bits = bits}, 1).unpack()));
      EXPECT_FALSE(at::equal(back, SavedTensor(x, {.bits = bits}, 1, 1).unpack()));
    }
  }
}

TEST(SavedTensor, ExactLosesNothing) {
  const at::Tensor x = at::randn({64, 1000}).relu();
  const SavedTensor kept(x, {.bits = 0}, 1);
  EXPECT_TRUE(at::equal(kept.unpack(), x));
  EXPECT_LT(kept.bytes(), x.nbytes() * 6 / 10);
  EXPECT_TRUE(SavedTensor(at::randn({64, 1000}), {.bits = 0}, 1).is_plain());
}

TEST(SavedTensor, KeepsWhatIsNotFiniteAsItIs) {
  at::Tensor x = at::randn({64, 1000});
  x[3][4] = std::numeric_limits<float>::infinity();
  const SavedTensor kept(x, {.bits = 4}, 1);
  EXPECT_TRUE(kept.is_plain());
  EXPECT_TRUE(at::equal(kept.unpack(), x));
}

TEST(SavedTensor, RefusesWhatWasChangedInPlace) {
  at::Tensor x = at::randn({64, 1000});
  const SavedTensor kept(x, {.bits = 8}, 1);
  kept.unpack();
  x.mul_(2);
  try {
    kept.unpack();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("modified by an inplace operation"));
  }
}

TEST(SavedTensor, RefusesOtherTypesAndWidths) {
  EXPECT_THROW(SavedTensor(at::ones({10}, at::kInt), {.bits = 8}, 1), InvalidArgument);
  EXPECT_THAT(
      [] { SavedTensor(at::ones({10}), {.bits = 3}, 1); },
      testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("[SavedTensor] expected bits")));
  EXPECT_THROW(SavedTensor(at::ones({10}), {.bits = 8, .group = 24}, 1), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad
