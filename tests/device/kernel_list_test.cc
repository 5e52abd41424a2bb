// The list of kernels, and what the order of threads is on the host.
#include "device/kernel_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "device/host_kernels.h"

namespace slimgrad::device {
namespace {

TEST(KernelList, IsTheTableOfTheHost) {
  std::vector<std::string_view> names(kernel_names().begin(), kernel_names().end());
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << "two kernels with one name";
  std::vector<std::string_view> on_host;
  for (const HostKernel& kernel : host_kernels()) on_host.push_back(kernel.name);
  EXPECT_EQ(on_host, names);
  for (const std::string_view name : names) EXPECT_EQ(find_host_kernel(name)->name, name);
  EXPECT_EQ(find_host_kernel("slimgrad_prune_f64"), nullptr);
  EXPECT_STREQ((kKernelName<Apply<float, Treats::kPrune>>), "slimgrad_prune_f32");
}

// A thread adds its right neighbour's number to its own. Whether `kInOneStep`, where the neighbour
// may have been there before, or in two.
template <bool kInOneStep>
struct AddNeighbour {
  static constexpr int kThreads = 64;
  using Arguments = int*;
  struct Shared {
    int numbers[kThreads];
  };
  static void run(const Block<kThreads>& block, int* const& out, Shared& shared) {
    Block<kThreads>::PerThread<int> neighbour;
    block.each([&](int thread) { shared.numbers[thread] = thread; });
    const auto read = [&](int thread) {
      neighbour[thread] = shared.numbers[(thread + 1) % kThreads];
    };
    const auto write = [&](int thread) { shared.numbers[thread] += neighbour[thread]; };
    if (kInOneStep) {
      block.each([&](int thread) {
        read(thread);
        write(thread);
      });
    } else {
      block.each(read);
      block.each(write);
    }
    block.each([&](int thread) { out[thread] = shared.numbers[thread]; });
  }
};

template <bool kInOneStep>
std::vector<int> sums(std::uint32_t shuffle) {
  std::vector<int> out(64);
  int* const data = out.data();
  run_on_host<AddNeighbour<kInOneStep>>(1, &data, shuffle);
  return out;
}

TEST(KernelList, OrdersOfThreadsShowWhereAStepIsMissing) {
  for (const std::uint32_t shuffle : {1, 2, 3}) {
    EXPECT_EQ(sums<false>(0), sums<false>(shuffle));
    EXPECT_NE(sums<true>(0), sums<true>(shuffle)) << shuffle;
  }
}

}  // namespace
}  // namespace slimgrad::device
