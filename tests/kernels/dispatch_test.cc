#include "kernels/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <slimgrad/error.h>

namespace slimgrad::kernels {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Dispatch, RefusesSetsThatAreNotThere) {
  try {
    select_kernel_set("mmx");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("scalar"));
    EXPECT_THAT(error.what(), HasSubstr("'mmx'"));
  }
}

// The other tests run each of kernel_sets(): this one, that none is missing there which the CPU
// has.
#if defined(__x86_64__)

// What every x86-64 has, SSE2, gets the code that Highway writes without instructions of its own,
// lane by lane.
TEST(Dispatch, HasASetForEveryLevelOfTheCpu) {
  std::vector<std::string> expected = {"scalar"};
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw");
  if (avx3) expected.push_back("avx3");
  if (avx2) expected.push_back("avx2");
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
    expected.push_back("sse4");
  expected.push_back("onelane");
  EXPECT_EQ(kernel_sets(), expected);
}

#elif defined(__aarch64__)

TEST(Dispatch, HasASetForEveryLevelOfTheCpu) {
  EXPECT_THAT(kernel_sets(), ElementsAre("scalar", "neon"));
}

#endif

}  // namespace
}  // namespace slimgrad::kernels
