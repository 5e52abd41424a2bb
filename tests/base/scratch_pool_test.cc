#include "base/scratch_pool.h"

#include <gtest/gtest.h>

#include "base/scratch.h"

namespace slimgrad {
namespace {

struct Buffer : Scratch<float> {};
struct OtherBuffer : Scratch<float> {};

class ScratchPoolTest : public testing::Test {
 protected:
  void SetUp() override { scratch_pool().release(); }
  void TearDown() override { scratch_pool().release(); }
};

TEST_F(ScratchPoolTest, GivesTheSameMemoryAgainToItsOwnKindOnly) {
  const float* first = nullptr;
  {
    const Pooled<Buffer> buffer;
    first = buffer->reserve(100);
    const Pooled<Buffer> another;  // while it is in use
    EXPECT_EQ(another->data(), nullptr);
  }
  const Pooled<OtherBuffer> other;
  EXPECT_EQ(other->data(), nullptr);
  const Pooled<Buffer> a, b;
  EXPECT_TRUE(a->data() == first || b->data() == first);
}

TEST_F(ScratchPoolTest, CountsAndReleasesWhatNobodyUses) {
  const Pooled<OtherBuffer> used;
  used->reserve(1000);
  { Pooled<Buffer>()->reserve(256); }
  EXPECT_EQ(scratch_pool().cached_bytes(), 1024u);
  EXPECT_EQ(scratch_pool().release(), 1024u);
  EXPECT_EQ(scratch_pool().cached_bytes(), 0u);
  EXPECT_EQ(Pooled<Buffer>()->data(), nullptr);
  used->data()[999] = 1;  // is still there
}

TEST_F(ScratchPoolTest, KeepsNoMoreThanItMay) {
  constexpr std::size_t kThird = kMostScratchCached / sizeof(float) / 3;
  {
    const Pooled<Buffer> a, b, c, d;
    for (const auto* buffer : {&a, &b, &c, &d}) (*buffer)->reserve(kThird);
  }
  EXPECT_EQ(scratch_pool().cached_bytes(), 3 * kThird * sizeof(float));
  // What is larger than all that may be kept does not drive out the others.
  { Pooled<OtherBuffer>()->reserve(kMostScratchCached / sizeof(float) + 1); }
  EXPECT_EQ(scratch_pool().cached_bytes(), 3 * kThird * sizeof(float));
}

}  // namespace
}  // namespace slimgrad
