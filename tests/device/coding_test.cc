// Packed codes on devices: the bytes and values of the CPU.
#include "device/coding.h"

#include <gtest/gtest.h>

#include <slimgrad/apply.h>

#include "arrays/apply/loop_treatment.h"
#include "arrays/apply/value_table.h"
#include "device/emulate.h"
#include "kernels/coding/uniform.h"
#include "kernels/measure/magnitude_range.h"

namespace slimgrad::device {
namespace {

template <typename T>
class DeviceCoding : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceCoding, ValueTypes);

TYPED_TEST(DeviceCoding, PacksAndUnpacksAsTheCpu) {
  using T = TypeParam;
  std::size_t number = 0;
  for (const auto& [exponent_bits, mantissa_bits] :
       {std::pair(1, 0), {2, 0}, {2, 1}, {3, 1}, {3, 2}, {4, 2}, {4, 3}}) {
    const FloatFormat format(exponent_bits, mantissa_bits);
    for_all_cases([&](std::size_t size, std::size_t shift, Kind kind) {
      ++number;
      const Quantizer quantizer = {format, 0.01,
                                   number % 2 == 0 ? Rounding::kNearest : Rounding::kStochastic,
                                   number % 3 == 0 ? Underflow::kZero : Underflow::kStochastic};
      const std::string message =
          describe<T>(size, shift, kind) + ", " + std::to_string(format.bits()) + " bits";
      const Array<T> in = make_values<T>(size, shift, kind, 1);
      Array<std::uint8_t> expected(packed_size(format, size), 0);
      Array<std::uint8_t> packed(expected.size(), shift);
      const ApplyCounts counts = pack(in.span(), expected.span(), quantizer, number, 0);
      const Treatment treatment = {.quantizer = quantizer, .seed = number};
      std::uint32_t all_finite = 1;
      launch<PackValues<T>>(
          {in.data(), packed.data(), size, &all_finite, static_cast<std::uint32_t>(format.bits()),
           loop_treatment<T>("test", treatment)},
          static_cast<std::uint32_t>(number % 4));
      ASSERT_TRUE(same_bits(expected, packed)) << message;
      ASSERT_EQ(counts.nonfinite == 0, all_finite != 0) << message;

      Array<T> values(size, 0), got(size, shift);
      unpack(std::as_const(packed).span(), values.span(), format, 0.3);
      DecodeArguments<T> arguments = {
          packed.data(), got.data(), size, static_cast<std::uint32_t>(format.bits()), {}};
      const auto table = float_value_table<T>(format, 0.3f);
      std::copy(table.begin(), table.end(), arguments.table);
      launch<UnpackValues<T>>(arguments, static_cast<std::uint32_t>(number % 4));
      ASSERT_TRUE(same_bits(values, got)) << message;
    });
  }
}

// What gradients travel in: symbols of the CPU's kernels, packed.
TYPED_TEST(DeviceCoding, HasTheUniformCodesOfTheCpu) {
  using T = TypeParam;
  std::size_t number = 0;
  for (const int bits : {8, 6, 4, 2})
    for_all_cases([&](std::size_t size, std::size_t shift, Kind kind) {
      ++number;
      if (kind == Kind::kAnyBits || kind == Kind::kSomeBad) return;  // finite values are required
      const std::string message =
          describe<T>(size, shift, kind) + ", " + std::to_string(bits) + " bits";
      const bool is_stochastic = number % 3 != 0;
      const int half = kernels::uniform_half(bits);
      const Array<T> in = make_values<T>(size, shift, kind, 1);
      const std::uint32_t max_bits = kernels::magnitude_range(in.span()).largest;
      const float step = kernels::scale_of_maximum(max_bits, half);
      std::vector<std::uint8_t> symbols(size);
      if (is_stochastic)
        kernels::uniform_symbols_stochastic(
            in.span(), step, half, RandomStream(number, Stream::kRound), 0, symbols.data());
      else
        kernels::uniform_symbols(in.span(), step, half, symbols.data());
      Array<std::uint8_t> expected(packed_bytes(size, bits), 0);
      Array<std::uint8_t> packed(expected.size(), shift);
      with_bits(bits, [&]<int b>() { pack_codes<b>(symbols.data(), size, expected.data()); });
      const auto width = static_cast<std::uint32_t>(bits);
      const auto shuffle = static_cast<std::uint32_t>(number % 4);
      launch<UniformEncode<T>>(
          {in.data(), packed.data(), size, &max_bits, number, width, is_stochastic ? 1u : 0u},
          shuffle);
      ASSERT_TRUE(same_bits(expected, packed)) << message;

      Array<T> values(size, 0), got(size, shift);
      const auto table = uniform_value_table<T>(half, step);
      for (std::size_t i = 0; i < size; ++i) values[i] = table[symbols[i]];
      launch<UniformDecode<T>>({packed.data(), got.data(), size, &max_bits, width}, shuffle);
      ASSERT_TRUE(same_bits(values, got)) << message;

      Array<float> sums = make_values<float>(size, shift, Kind::kNormal, 2), added = sums;
      kernels::add_uniform_values(symbols, step, half, sums.data());
      launch<UniformAdd>({packed.data(), added.data(), size, &max_bits, width}, shuffle);
      ASSERT_TRUE(same_bits(sums, added)) << message;
    });
}

// Whatever is not finite leaves its neighbours alone.
TYPED_TEST(DeviceCoding, GivesEveryValueAUniformCodeOfItsWidth) {
  using T = TypeParam;
  const Array<T> in = make_values<T>(1000, 0, Kind::kAnyBits, 1);
  const std::uint32_t max_bits = kernels::magnitude_bits(1.0f);
  Array<std::uint8_t> packed(500, 0);
  launch<UniformEncode<T>>({in.data(), packed.data(), 1000, &max_bits, 1, 4, 0});
  for (std::size_t i = 0; i < 1000; ++i) {
    const float x = kernels::to_float(in.data()[i]);
    const int code = packed[i / 2] >> (i % 2 * 4) & 15;
    const float limited = std::isnan(x) ? 0.0f : std::clamp(x, -1.0f, 1.0f);
    ASSERT_EQ(code, static_cast<int>(std::nearbyint(limited / (1.0f / 7))) + 7) << x;
  }
}

}  // namespace
}  // namespace slimgrad::device
