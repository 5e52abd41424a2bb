#include "kernels/saved/saved.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "for_each_target.h"
#include "kernels/half_float.h"

namespace slimgrad::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Kind {
  const char* name;
  std::function<float(std::mt19937&)> draw;
};

// What tensors hold, and what they should not.
std::vector<Kind> kinds() {
  static std::normal_distribution<float> normal(0.0f, 1.5f);
  return {
      {"normal", [](std::mt19937& engine) { return normal(engine); }},
      {"relu", [](std::mt19937& engine) { return std::max(0.0f, normal(engine)); }},
      {"negative", [](std::mt19937& engine) { return -std::fabs(normal(engine)); }},
      {"not positive", [](std::mt19937& engine) { return std::min(-0.0f, normal(engine)); }},
      {"zeros", [](std::mt19937& engine) { return engine() % 2 ? 0.0f : -0.0f; }},
      {"relu with both zeros",
       [](std::mt19937& engine) {
         return engine() % 2 ? std::fabs(normal(engine)) : engine() % 2 ? 0.0f : -0.0f;
       }},
      {"constant", [](std::mt19937&) { return 3.14159f; }},
      {"far from zero", [](std::mt19937& engine) { return 1000.0f + 0.01f * normal(engine); }},
      {"tiny", [](std::mt19937& engine) { return 1e-42f * normal(engine); }},
      {"small and zero", [](std::mt19937& engine) { return engine() % 3 ? 0.0f : 1e-39f; }},
      {"large", [](std::mt19937& engine) { return 20000.0f * normal(engine); }},
      {"as large as can be",
       [](std::mt19937& engine) { return (engine() % 2 ? 1.0f : -1.0f) * 3.4e38f; }},
      {"some not finite",
       [](std::mt19937& engine) {
         const std::uint32_t choice = engine() % 600;
         return choice == 0 ? kInfinity : choice == 1 ? std::nanf("") : normal(engine);
       }},
  };
}

template <typename T>
std::vector<T> make_values(std::size_t num_values, const Kind& kind, std::uint32_t seed = 7) {
  std::mt19937 engine(seed);
  std::vector<T> values(num_values);
  for (T& value : values) value = from_float<T>(kind.draw(engine));
  return values;
}

struct Kept {
  std::vector<std::uint32_t> codes, scales;
  std::size_t num_bad = 0;
  Kept(std::size_t num_values, const saved::Format& format)
      : codes(saved::code_words(num_values, format.bits), ~0u),
        scales(saved::num_groups(num_values, format.group), ~0u) {}
  bool operator==(const Kept&) const = default;
};

constexpr std::uint64_t kFirst = 5 * saved::kBlockValues;
const RandomStream kRandom(11, Stream::kSaved);

template <typename T>
Kept packed(const std::vector<T>& values, const saved::Format& format) {
  Kept kept(values.size(), format);
  kept.num_bad =
      pack_saved<T>(values, format, kRandom, kFirst, kept.codes.data(), kept.scales.data());
  return kept;
}

template <typename T>
class SavedKernels : public testing::Test {};
using InputTypes = testing::Types<float, BFloat16Bits, Float16Bits>;
TYPED_TEST_SUITE(SavedKernels, InputTypes);

TYPED_TEST(SavedKernels, EverySetGivesTheSpecificationsBits) {
  for (const Kind& kind : kinds()) {
    for (const saved::Format& format :
         {saved::Format{8, 256, true}, saved::Format{4, 512, true}, saved::Format{2, 16, true},
          saved::Format{8, 32, false}, saved::Format{4, 64, false}, saved::Format{2, 128, true},
          saved::Format{2, 64, true}, saved::Format{4, 32, true}}) {
      for (const std::size_t n : {1, 15, 16, 17, 511, 512, 513, 1700}) {
        const auto values = make_values<TypeParam>(n, kind);
        Kept expected(n, format);
        expected.num_bad = pack_saved_scalar<TypeParam>(
            values, format, kRandom, kFirst, expected.codes.data(), expected.scales.data());
        std::vector<TypeParam> back(n);
        unpack_saved_scalar<TypeParam>(expected.codes.data(), expected.scales.data(), format, back);
        for_each_target([&](const char* set) {
          ASSERT_EQ(packed(values, format), expected)
              << set << ' ' << kind.name << ' ' << format.bits << " bits, " << n << " values";
          std::vector<TypeParam> unpacked(n);
          unpack_saved<TypeParam>(expected.codes.data(), expected.scales.data(), format, unpacked);
          for (std::size_t i = 0; i < n; ++i) {
            if (std::isnan(to_float(back[i])))
              ASSERT_TRUE(std::isnan(to_float(unpacked[i]))) << set << ' ' << i;
            else
              ASSERT_EQ(float_bits(unpacked[i]), float_bits(back[i])) << set << ' ' << i;
          }
        });
      }
    }
  }
}

// The rules in double precision: the grid holds the group, no code is further than a step away, the
// nearest one not further than half, and which values are zero is exact.
TYPED_TEST(SavedKernels, LevelsAreNextToTheValues) {
  for (const Kind& kind : kinds()) {
    for (const int bits : {8, 4, 2}) {
      for (const bool is_stochastic : {true, false}) {
        const saved::Format format{bits, 64, is_stochastic};
        const auto values = make_values<TypeParam>(1024, kind);
        const Kept kept = packed(values, format);
        std::size_t num_bad = 0;
        for (std::size_t g = 0; g < 1024 / 64; ++g) {
          double low = kInfinity, high = -kInfinity, least_positive = kInfinity;
          bool is_finite = true;
          for (std::size_t i = 64 * g; i < 64 * (g + 1); ++i) {
            const double x = to_float(values[i]);
            is_finite = is_finite && std::isfinite(x);
            low = std::min(low, x), high = std::max(high, x);
            if (x > 0) least_positive = std::min(least_positive, x);
          }
          if (!is_finite || high - low > 3e38) {
            EXPECT_EQ(kept.scales[g], saved::kBadScale);
            ++num_bad;
            continue;
          }
          const saved::Levels levels(kept.scales[g]);
          const bool is_relu = low == 0 && high > 0;
          if (is_relu) low = least_positive;
          ASSERT_EQ(levels.has_zeros, is_relu);
          ASSERT_LE(levels.lowest, low);
          ASSERT_GE(levels.lowest, low - std::fabs(low) / 128 - 0x1p-126);
          const int num_steps = (1 << bits) - (is_relu ? 2 : 1);
          const double step = levels.step;
          // Rounded once, to nearest, before it is rounded up.
          ASSERT_GE(step * (1 + 0x1p-21), (high - levels.lowest) / num_steps);
          ASSERT_LE(step, std::max((high - levels.lowest) / num_steps * (1 + 0x1p-6), 0x1p-99));
          for (std::size_t i = 64 * g; i < 64 * (g + 1); ++i) {
            const std::uint32_t code =
                saved::code_at(&kept.codes[i / 512 * fewbit::block_words(bits)], i % 512, bits);
            const double x = to_float(values[i]);
            if (is_relu) {
              ASSERT_EQ(code == 0, x == 0);
            }
            if (is_relu && x == 0) continue;
            const double error = std::fabs(levels.at(code) - x);
            // A float32 level is rounded, too.
            const double slack = std::fabs(x) * 0x1p-22 + step * 0x1p-14;
            ASSERT_LE(error, (is_stochastic ? 1.0 : 0.5) * step + slack)
                << kind.name << ' ' << bits << " bits: " << x;
          }
        }
        EXPECT_EQ(kept.num_bad, num_bad);
      }
    }
  }
}

// Every code at every place of a block, from values that lie on the grid.
TYPED_TEST(SavedKernels, EveryCodeAtEveryPlaceComesBack) {
  for (const int bits : {8, 4, 2}) {
    const int num_codes = 1 << bits;
    for (const bool is_stochastic : {true, false}) {
      for (int shift = 0; shift < num_codes; ++shift) {
        std::vector<TypeParam> values(512), back(512);
        for (std::size_t i = 0; i < 512; ++i)
          values[i] = from_float<TypeParam>(
              static_cast<float>((static_cast<int>(i) + shift) % num_codes - num_codes / 2));
        const saved::Format format{bits, 512, is_stochastic};
        const Kept kept = packed(values, format);
        ASSERT_EQ(saved::Levels(kept.scales[0]).step, 1.0f);
        unpack_saved<TypeParam>(kept.codes.data(), kept.scales.data(), format, back);
        for (std::size_t i = 0; i < 512; ++i) {
          ASSERT_EQ(float_bits(back[i]), float_bits(values[i])) << i;
          ASSERT_EQ(saved::code_at(kept.codes.data(), i, bits),
                    (i + static_cast<std::size_t>(shift)) % static_cast<std::size_t>(num_codes));
        }
      }
    }
  }
}

// Over all 65,536 draws the mean code is the value, cut to 16 binary digits: that is all the bias.
TEST(SavedRounding, IsUnbiasedToSixteenDigits) {
  for (const int bits : {8, 4, 2}) {
    for (const float least : {0.0f, 1.0f}) {  // 1: of a group with zeros
      const saved::Scale scale = saved::make_scale(0.0f, 11.7f, 1.0f, bits);
      ASSERT_EQ(scale.first, saved::kOne);
      const saved::Scale plain = saved::make_scale(-3.3f, 11.7f, 0.0f, bits);
      const saved::Scale& used = least == 0.0f ? plain : scale;
      const saved::Levels levels(used.word);
      for (const float x : {1.0f, 1.5f, 2.718f, 7.0f, 11.1f, 11.7f}) {
        double sum = 0;
        for (std::uint32_t r = 0; r < saved::kOne; ++r) sum += levels.at(code_of(x, used, r, bits));
        // One digit of sixteen, and float32's own roundings.
        EXPECT_NEAR(sum / saved::kOne, x, levels.step * 0x1p-16 + 2e-6) << bits << " bits: " << x;
      }
    }
  }
}

// A float16 tensor's largest numbers stay finite, though the uppermost level may lie above them.
TEST(SavedRounding, StaysInTheTypesRange) {
  std::vector<Float16Bits> values(512, Float16Bits{0x7bff}), back(512);
  values[0] = {0xfbff};
  for (const int bits : {8, 4, 2}) {
    const saved::Format format{bits, 512, true};
    const Kept kept = packed(values, format);
    unpack_saved<Float16Bits>(kept.codes.data(), kept.scales.data(), format, back);
    for (const Float16Bits value : back) ASSERT_TRUE(std::isfinite(to_float(value)));
    EXPECT_EQ(back[0].bits, 0xfbff);
    EXPECT_EQ(back[1].bits, 0x7bff);
  }
}

}  // namespace
}  // namespace slimgrad::kernels
