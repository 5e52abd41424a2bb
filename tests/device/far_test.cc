// Arrays of more than 2^32 values: the end of one has the bits that the CPU gives it, with only the
// end in memory. A kernel that computes an index in 32 bits touches what is not there.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <slimgrad/apply.h>

#include <algorithm>
#include <limits>
#include <new>

#include "arrays/apply/loop_treatment.h"
#include "device/emulate.h"
#include "formats/bit_packing.h"
#include "kernels/coding/uniform.h"
#include "kernels/saved/saved.h"

namespace slimgrad::device {
namespace {

constexpr std::uint64_t kFirst = std::uint64_t{1} << 32;  // in memory from here on
constexpr std::size_t kTail = 70'003;
constexpr std::uint64_t kFarSize = kFirst + kTail;

// Elements [first, size); those before have addresses alone.
template <typename T>
class FarArray {
 public:
  FarArray(std::uint64_t first, std::uint64_t size)
      : first_(first),
        size_(size),
        memory_(
            mmap(nullptr, bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    constexpr std::uint64_t kPage = 4096;
    const std::uint64_t begin = first * sizeof(T) / kPage * kPage;
    if (mprotect(static_cast<char*>(memory_) + begin, bytes() - begin, PROT_READ | PROT_WRITE) != 0)
      throw std::bad_alloc();
  }
  FarArray(const FarArray&) = delete;
  FarArray& operator=(const FarArray&) = delete;
  ~FarArray() { munmap(memory_, bytes()); }

  T* data() const { return static_cast<T*>(memory_); }
  std::span<T> tail() const { return {data() + first_, static_cast<std::size_t>(size_ - first_)}; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(size_ * sizeof(T)); }

  std::uint64_t first_, size_;
  void* memory_;
};

// A kernel's blocks from `first` on.
template <class Kernel>
struct EndOf {
  struct Arguments {
    typename Kernel::Arguments all;
    std::uint64_t first;
  };
  using Shared = typename Kernel::Shared;
  static void run(const Block<Kernel::kThreads>& block, const Arguments& a, Shared& shared) {
    Kernel::run({a.first + block.index, block.shuffle}, a.all, shared);
  }
};

// The blocks that an array of kFirst values would not have.
template <class Kernel>
void launch_end(const typename Kernel::Arguments& arguments) {
  auto before = arguments;
  before.size = kFirst;
  const std::uint64_t first = Kernel::num_blocks(before), end = Kernel::num_blocks(arguments);
  ASSERT_LT(first, end);
  const typename EndOf<Kernel>::Arguments end_of = {arguments, first};
  run_on_host<EndOf<Kernel>>(end - first, &end_of, 1);
}

template <typename T>
class DeviceFar : public ::testing::Test {
 protected:
  DeviceFar() { std::ranges::copy(values.span(), in.tail().begin()); }

  Array<T> values = make_values<T>(kTail, 0, Kind::kWide, 1);
  FarArray<T> in{kFirst, kFarSize}, out{kFirst, kFarSize};
};
TYPED_TEST_SUITE(DeviceFar, ValueTypes);

TYPED_TEST(DeviceFar, TreatsTheEnd) {
  using T = TypeParam;
  const Treatment treatment = {
      .threshold = 0.01,
      .quantizer = Quantizer{FloatFormat(4, 1), 0.001, Rounding::kStochastic, Underflow::kZero},
      .seed = 9};
  Array<T> expected(kTail, 0);
  const ApplyCounts counts =
      apply(treatment, std::as_const(this->values).span(), expected.span(), kFirst);
  std::uint64_t found[3] = {};
  launch_end<Apply<T, Treats::kPruneQuantize>>(
      {this->in.data(), this->out.data(), kFarSize, found, loop_treatment<T>("test", treatment)});
  EXPECT_TRUE(same_bits(expected, this->out.tail()));
  EXPECT_EQ(counts.zeros, found[0]);
  EXPECT_EQ(counts.at_threshold, found[1]);
}

TYPED_TEST(DeviceFar, CodesTheEndInFewBits) {
  using T = TypeParam;
  constexpr int kBits = 3;
  const kernels::StepLookup steps = {.bits = kBits,
                                     .is_even = false,
                                     .borders = {-1, -0.5f, -0.1f, 0, 0.1f, 0.5f, 1},
                                     .levels = {0, 0.1f, 0.2f, 0.4f, 0.6f, 0.8f, 1, 1.1f}};
  FarArray<std::uint32_t> codes(fewbit::packed_bytes(kFirst, kBits) / 4,
                                fewbit::packed_bytes(kFarSize, kBits) / 4);
  Array<std::uint32_t> expected_codes(codes.tail().size(), 0);
  kernels::pack_codes<T>(std::as_const(this->values).span(), steps, expected_codes.span());
  launch_end<StepCodes<T, kBits>>({this->in.data(), codes.data(), kFarSize, steps});
  EXPECT_TRUE(same_bits(expected_codes, codes.tail()));

  Array<T> expected(kTail, 0);
  kernels::multiply_levels<T>(std::as_const(this->values).span(), expected_codes.span(), steps,
                              expected.span());
  launch_end<StepBackward<T, kBits>>(
      {this->in.data(), codes.data(), this->out.data(), kFarSize, steps});
  EXPECT_TRUE(same_bits(expected, this->out.tail()));
}

TYPED_TEST(DeviceFar, PacksTheEndOfWhatIsSaved) {
  using T = TypeParam;
  constexpr int kBits = 4;
  constexpr std::uint32_t kGroup = 256;
  const saved::Format format{kBits, kGroup, true};
  // All codes, all scales, and the number of bad groups.
  const std::uint64_t scales = saved::code_words(kFarSize, kBits),
                      bad = saved::num_words(kFarSize, format) - 1;
  FarArray<std::uint32_t> words(saved::code_words(kFirst, kBits), bad + 1);
  Array<std::uint32_t> expected_codes(words.tail().size() - (bad + 1 - scales), 0),
      expected_scales(saved::num_groups(kTail, kGroup), 0);
  const std::size_t num_bad = kernels::pack_saved<T>(std::as_const(this->values).span(), format,
                                                     RandomStream(5, Stream::kSaved), kFirst,
                                                     expected_codes.data(), expected_scales.data());
  launch_end<PackSaved<T, kBits>>({this->in.data(), words.data(), kFarSize, 5, kGroup, 1});
  EXPECT_TRUE(same_bits(expected_codes, words.tail().first(expected_codes.size())));
  EXPECT_TRUE(same_bits(
      expected_scales, std::span(words.data() + scales + kFirst / kGroup, expected_scales.size())));
  EXPECT_EQ(words.data()[bad], num_bad);

  Array<T> expected(kTail, 0);
  kernels::unpack_saved<T>(expected_codes.data(), expected_scales.data(), format, expected.span());
  launch_end<UnpackSaved<T, kBits>>({words.data(), this->out.data(), kFarSize, kGroup});
  EXPECT_TRUE(same_bits(expected, this->out.tail()));
}

TYPED_TEST(DeviceFar, CodesTheEndOfAnExchange) {
  using T = TypeParam;
  constexpr int kBits = 6;
  const int half = kernels::uniform_half(kBits);
  const std::uint32_t max_bits = kernels::magnitude_bits(3.0f);
  const float step = kernels::scale_of_maximum(max_bits, half);
  std::vector<std::uint8_t> symbols(kTail);
  kernels::uniform_symbols_stochastic(std::as_const(this->values).span(), step, half,
                                      RandomStream(7, Stream::kRound), kFirst, symbols.data());
  FarArray<std::uint8_t> packed(packed_bytes(kFirst, kBits), packed_bytes(kFarSize, kBits));
  Array<std::uint8_t> expected(packed.tail().size(), 0);
  pack_codes<kBits>(symbols.data(), kTail, expected.data());
  launch_end<UniformEncode<T>>({this->in.data(), packed.data(), kFarSize, &max_bits, 7, kBits, 1});
  EXPECT_TRUE(same_bits(expected, packed.tail()));

  Array<T> decoded(kTail, 0);
  for (std::size_t i = 0; i < kTail; ++i)
    decoded[i] = kernels::from_float<T>(kernels::uniform_value(symbols[i], step, half));
  launch_end<UniformDecode<T>>({packed.data(), this->out.data(), kFarSize, &max_bits, kBits});
  EXPECT_TRUE(same_bits(decoded, this->out.tail()));
}

TYPED_TEST(DeviceFar, SeesTheLargestValueAtTheEnd) {
  using T = TypeParam;
  this->in.tail().back() = kernels::from_float<T>(3e4f);
  this->in.tail()[4000] = kernels::from_float<T>(std::numeric_limits<float>::infinity());
  std::uint32_t max_bits = 0, num_nonfinite = 0;
  launch_end<MaxMagnitude<T>>({this->in.data(), kFarSize, &max_bits, &num_nonfinite});
  EXPECT_EQ(max_bits, kernels::magnitude_bits(kernels::from_float<T>(3e4f)));
  EXPECT_EQ(num_nonfinite, 1u);
}

}  // namespace
}  // namespace slimgrad::device
