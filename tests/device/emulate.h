// What the tests of the kernels of devices share: arrays, and a kernel of the list on the host.
#ifndef SLIMGRAD_TESTS_DEVICE_EMULATE_H_
#define SLIMGRAD_TESTS_DEVICE_EMULATE_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/host_kernels.h"
#include "device/kernel_list.h"
#include "kernels/half_float.h"

namespace slimgrad::device {

// Found by its name, as a launcher finds it.
template <class Kernel>
void launch(const typename Kernel::Arguments& arguments, std::uint32_t shuffle = 0) {
  const HostKernel* const kernel = find_host_kernel(kKernelName<Kernel>);
  ASSERT_NE(kernel, nullptr) << kKernelName<Kernel>;
  kernel->run(Kernel::num_blocks(arguments), &arguments, shuffle);
}

// `size` values behind `shift` others: at an address that 16 bytes do not divide unless shift is 0.
// The allocation ends with the last value, where a sanitizer looks.
template <typename T>
class Array {
 public:
  Array(std::size_t size, std::size_t shift) : shift_(shift), all_(size + shift) {}
  T* data() { return all_.data() + shift_; }
  const T* data() const { return all_.data() + shift_; }
  std::size_t size() const { return all_.size() - shift_; }
  std::span<const T> span() const { return {data(), size()}; }
  std::span<T> span() { return {data(), size()}; }
  T& operator[](std::size_t i) { return data()[i]; }

 private:
  std::size_t shift_;
  std::vector<T> all_;
};

// Counts what was compared, and says so in the end.
class Compared {
 public:
  static Compared& all() {
    static Compared compared;
    return compared;
  }
  std::uint64_t arrays = 0, values = 0;
  ~Compared() {
    std::printf("%llu arrays, %llu values compared\n", static_cast<unsigned long long>(arrays),
                static_cast<unsigned long long>(values));
  }
};

// Whether all bits are equal.
template <typename T>
bool same_bits(std::span<const T> expected, std::span<const T> got) {
  ++Compared::all().arrays;
  Compared::all().values += expected.size();
  return expected.size() == got.size() &&
         (expected.empty() || std::memcmp(expected.data(), got.data(), expected.size_bytes()) == 0);
}
template <typename A, typename B>
bool same_bits(const A& expected, const B& got) {
  return same_bits(
      std::span<const std::remove_cvref_t<decltype(*expected.data())>>(expected.data(),
                                                                       expected.size()),
      std::span<const std::remove_cvref_t<decltype(*got.data())>>(got.data(), got.size()));
}

enum class Kind { kNormal, kWide, kRelu, kSubnormal, kAnyBits, kSomeBad, kZeros };
inline constexpr Kind kKinds[] = {Kind::kNormal,  Kind::kWide,    Kind::kRelu, Kind::kSubnormal,
                                  Kind::kAnyBits, Kind::kSomeBad, Kind::kZeros};

template <typename T>
Array<T> make_values(std::size_t size, std::size_t shift, Kind kind, std::uint64_t seed) {
  std::mt19937_64 engine(seed + 100 * static_cast<std::uint64_t>(kind) + size);
  std::normal_distribution<float> normal;
  Array<T> values(size, shift);
  for (T& value : values.span()) {
    const std::uint64_t bits = engine();
    const float sign = bits & 1 ? 1.0f : -1.0f;
    float x = normal(engine);
    const float any = std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
    switch (kind) {
      case Kind::kNormal:
        break;
      case Kind::kWide:
        x = sign * std::exp(3 * x - 8);
        break;
      case Kind::kRelu:
        x = std::max(x, 0.0f);
        break;
      case Kind::kSubnormal:
        x *= std::is_same_v<T, Float16Bits> ? 1e-5f : 1e-38f;
        break;
      case Kind::kAnyBits:
        x = any;
        break;
      case Kind::kSomeBad:
        if (bits % 300 == 0) x = any;
        break;
      case Kind::kZeros:
        x = sign * 0.0f;
        break;
    }
    value = kernels::from_float<T>(x);
  }
  return values;
}

// The case, for a message.
template <typename T>
std::string describe(std::size_t size, std::size_t shift, Kind kind) {
  return std::string(sizeof(T) == 4 ? "float32" : "16 bits") + ", " + std::to_string(size) +
         " values, shifted by " + std::to_string(shift) + ", of kind " +
         std::to_string(static_cast<int>(kind));
}

// Calls test(size, shift, kind) for everything: tails of packs, warps, blocks and chunks, aligned
// and not.
template <class Test>
void for_all_cases(const Test& test) {
  for (const std::size_t size : {1, 3, 31, 127, 128, 511, 512, 513, 2047, 4096, 4097, 9000})
    for (const std::size_t shift : {0, 1})
      for (const Kind kind : kKinds) test(size, shift, kind);
}

using ValueTypes = ::testing::Types<float, BFloat16Bits, Float16Bits>;

}  // namespace slimgrad::device

#endif  // SLIMGRAD_TESTS_DEVICE_EMULATE_H_
