#include <slimgrad/gate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <slimgrad/apply.h>
#include <slimgrad/error.h>

#include <slimgrad/seed.h>

namespace slimgrad {
namespace {

std::vector<float> lognormal_values(std::size_t count, double sigma = 1.5, unsigned seed = 5) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i % 2 ? 1 : -1) * std::exp(sigma * normal(engine) - 7));
  return values;
}

GateOptions pruning_to(double sparsity) {
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = sparsity;
  options.seed = 77;
  return options;
}

// The seed of a call's draws, as the header of the class says it: mixed from seed, call and stream.
std::uint64_t draw_of(std::uint64_t seed, std::uint64_t call, std::uint64_t stream) {
  return derive_seed(seed, {call, stream});
}

double zeros_of(const std::vector<float>& values) {
  double zeros = 0;
  for (const float x : values) zeros += x == 0;
  return zeros / static_cast<double>(values.size());
}

TEST(Gate, PrunesToTheWantedSparsityAndSaysSo) {
  const auto in = lognormal_values(100000);
  GateState gate = new_gate(pruning_to(0.85));
  std::vector<float> out(in.size());
  const auto [report, stats] = pass_gate(gate, in, out);
  EXPECT_NEAR(zeros_of(out), 0.85, 0.005);
  EXPECT_DOUBLE_EQ(report.sparsity, zeros_of(out));
  EXPECT_EQ(report.sparsity_wanted, 0.85);
  EXPECT_TRUE(report.compressed);
  EXPECT_EQ(report.calls, 1);
  EXPECT_EQ(gate.calls, 1);
  EXPECT_EQ(stats.count, in.size());
  EXPECT_EQ(report.threshold, gate.in_force.threshold);
}

TEST(Gate, DoesWhatTheTreatmentInForceDoesWithTheDrawOfTheCall) {
  const auto in = lognormal_values(30000);
  GateOptions options = pruning_to(0.8);
  options.settings.bits = 6;
  GateState gate = new_gate(options);
  for (std::uint64_t call = 0; call < 3; ++call) {
    std::vector<float> out(in.size()), expected(in.size());
    pass_gate(gate, in, out, 4);
    Treatment treatment = gate.in_force;
    treatment.seed = draw_of(*options.seed, call, 4);
    apply(treatment, in, expected);
    EXPECT_EQ(out, expected) << call;
  }
}

TEST(Gate, WorksInPlaceAndOnEveryType) {
  const auto values = lognormal_values(20000);
  const auto check_type = [&]<typename T>(T) {
    std::vector<T> in(values.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]);
      if constexpr (std::is_same_v<T, float>)
        in[i] = values[i];
      else if constexpr (std::is_same_v<T, BFloat16Bits>)
        in[i] = {static_cast<std::uint16_t>(bits >> 16)};
      else
        in[i] = {static_cast<std::uint16_t>(0x3c00 + (bits & 0x1ff))};
    }
    GateState first = new_gate(pruning_to(0.7)), second = first;
    std::vector<T> out(in.size());
    const GateReport report = pass_gate(first, std::span<const T>(in), std::span<T>(out)).report;
    pass_gate(second, std::span<const T>(in), std::span<T>(in));
    EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size() * sizeof(T)), 0);
    EXPECT_NEAR(report.sparsity, 0.7, 0.02);
  };
  check_type(float{});
  check_type(BFloat16Bits{});
  check_type(Float16Bits{});
}

TEST(Gate, ASavedStateGoesOnToTheBit) {
  const auto in = lognormal_values(20000);
  GateOptions options = pruning_to(0.9);
  options.refresh_every = 3;
  GateState whole = new_gate(options), resumed = whole;
  std::vector<float> out(in.size()), again(in.size());
  for (int call = 0; call < 7; ++call) {
    pass_gate(whole, in, out);
    const GateState saved = resumed;  // as a checkpoint would
    resumed = saved;
    pass_gate(resumed, in, again);
    EXPECT_EQ(out, again) << call;
  }
}

TEST(Gate, StreamsDrawDifferently) {
  const auto in = lognormal_values(20000);
  GateState first = new_gate(pruning_to(0.9)), second = first;
  std::vector<float> a(in.size()), b(in.size());
  pass_gate(first, in, a, 0);
  pass_gate(second, in, b, 1);
  EXPECT_NE(a, b);
}

TEST(Gate, LeavesSmallGradientsAndTheWarmUpAlone) {
  const auto in = lognormal_values(5000);
  GateOptions options = pruning_to(0.9);
  options.min_elements = 5001;
  GateState small = new_gate(options);
  std::vector<float> out(in.size());
  EXPECT_FALSE(pass_gate(small, in, out).report.compressed);
  EXPECT_EQ(out, in);

  options.min_elements = 0;
  options.warmup = 2;
  GateState warm = new_gate(options);
  EXPECT_FALSE(pass_gate(warm, in, out).report.compressed);
  EXPECT_FALSE(pass_gate(warm, in, out).report.compressed);
  EXPECT_TRUE(pass_gate(warm, in, out).report.compressed);
  EXPECT_EQ(warm.calls, 3);
}

TEST(Gate, FollowsItsSchedule) {
  const auto in = lognormal_values(50000);
  GateOptions options = pruning_to(0);
  options.schedule = {{2, 0.5}, {6, 0.9}};
  GateState gate = new_gate(options);
  std::vector<float> out(in.size());
  // Before the first point its sparsity holds, after the last one that one's; linear in between.
  for (const double wanted : {0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9}) {
    const GateReport report = pass_gate(gate, in, out).report;
    EXPECT_NEAR(report.sparsity_wanted, wanted, 1e-12);
    EXPECT_NEAR(report.sparsity, wanted, 0.01);
  }
  set_sparsity(gate, 0.3);
  EXPECT_EQ(pass_gate(gate, in, out).report.sparsity_wanted, 0.3);
}

TEST(Gate, GuardsATreatmentThatIsOlderThanTheGradient) {
  auto in = lognormal_values(50000);
  GateOptions options = pruning_to(0.9);
  options.refresh_every = 0;
  GateState gate = new_gate(options);
  std::vector<float> out(in.size());
  pass_gate(gate, in, out);
  const double old = gate.in_force.threshold;
  for (float& x : in) x *= 1e-6f;
  const GateReport report = pass_gate(gate, in, out).report;
  EXPECT_EQ(gate.in_force.threshold, old);
  // Without the guard nothing would be left: the threshold is a million times too large.
  EXPECT_LT(report.sparsity, 0.95);
  gate.due = true;
  pass_gate(gate, in, out);
  EXPECT_NEAR(gate.in_force.threshold, old * 1e-6, old * 1e-8);
}

TEST(Gate, KeepsNanAndInfAndCountsThem) {
  auto in = lognormal_values(20000);
  in[3] = std::numeric_limits<float>::infinity();
  in[777] = std::numeric_limits<float>::quiet_NaN();
  GateOptions options = pruning_to(0.9);
  options.settings.bits = 4;
  GateState gate = new_gate(options);
  std::vector<float> out(in.size());
  EXPECT_EQ(pass_gate(gate, in, out).report.nonfinite, 2);
  EXPECT_TRUE(std::isinf(out[3]) && std::isnan(out[777]));

  std::vector<float> nothing(5000, std::numeric_limits<float>::quiet_NaN());
  out.resize(nothing.size());
  EXPECT_FALSE(pass_gate(gate, nothing, out).report.compressed);
  std::vector<float> empty;
  EXPECT_FALSE(pass_gate(gate, empty, std::span<float>()).report.compressed);
}

TEST(Gate, IsUnbiased) {
  // 400 draws of FP4 after pruning to 0.8: the mean of each value, within five standard errors of
  // the mean of all. One value has a deviation of at most the threshold; the sum over 20000 values
  // averages those.
  const auto in = lognormal_values(20000);
  GateOptions options = pruning_to(0.8);
  options.settings.bits = 4;
  GateState gate = new_gate(options);
  std::vector<float> out(in.size());
  double shift = 0, squares = 0;
  constexpr int kDraws = 400;
  for (int draw = 0; draw < kDraws; ++draw) {
    pass_gate(gate, in, out);
    double difference = 0;
    for (std::size_t i = 0; i < in.size(); ++i) difference += out[i] - in[i];
    shift += difference;
    squares += difference * difference;
  }
  const double mean = shift / kDraws;
  const double deviation = std::sqrt(squares / kDraws - mean * mean);
  EXPECT_LT(std::abs(mean), 5 * deviation / std::sqrt(kDraws));
}

TEST(Gate, ItsCosineDoesNotMissTheFewValuesThatCarryIt) {
  // As in the head of a language model: one value in a thousand is a thousand times larger, so that
  // what is compared has four of them on average, and now and then none.
  auto in = lognormal_values(200000, 0.3);
  for (std::size_t i = 0; i < in.size(); i += 1000) in[(i * 7919 + 13) % in.size()] *= 1000;
  GateState gate = new_gate(pruning_to(0.85));
  std::vector<float> out(in.size());
  for (int call = 0; call < 40; ++call) {
    const GateReport report = pass_gate(gate, in, out).report;
    double xx = 0, xy = 0, yy = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      xx += double{in[i]} * in[i];
      xy += double{in[i]} * out[i];
      yy += double{out[i]} * out[i];
    }
    // The sample has some 65 of them: their share of the squares is good to an eighth.
    EXPECT_NEAR(report.cosine, xy / std::sqrt(xx * yy), 5e-3) << call;
  }
}

// Sixty values carry nearly all of x x and are rounded like any other. What is compared has one of
// them on average, and often two or three, where they weigh more than in the sample.
TEST(Gate, ItsCosineIsNeverAboveOne) {
  auto in = lognormal_values(200000, 0.3);
  for (std::size_t i = 0; i < 60; ++i) in[(i * 7919 * 41 + 13) % in.size()] *= 3000;
  for (const double sparsity : {0.0, 0.3}) {
    GateOptions options = pruning_to(sparsity);
    if (sparsity == 0) options.settings.prune = PruneKind::kNone;
    options.settings.bits = 8;
    GateState gate = new_gate(options);
    std::vector<float> out(in.size());
    double mean = 0, exact = 0;
    constexpr int kCalls = 100;
    for (int call = 0; call < kCalls; ++call) {
      const GateReport report = pass_gate(gate, in, out).report;
      EXPECT_LE(report.cosine, 1) << call;
      EXPECT_GT(report.cosine, 0.99) << call;
      double xx = 0, xy = 0, yy = 0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        xx += double{in[i]} * in[i];
        xy += double{in[i]} * out[i];
        yy += double{out[i]} * out[i];
      }
      mean += report.cosine / kCalls;
      exact += xy / std::sqrt(xx * yy) / kCalls;
    }
    EXPECT_NEAR(1 - mean, 1 - exact, 0.5 * (1 - exact)) << sparsity;
  }
}

TEST(Gate, TopKDropsWhatIsBelowAndKeepsTheRest) {
  const auto in = lognormal_values(50000);
  GateOptions options = pruning_to(0.8);
  options.settings.prune = PruneKind::kTopK;
  GateState gate = new_gate(options);
  std::vector<float> out(in.size());
  pass_gate(gate, in, out);
  const auto threshold = static_cast<float>(gate.in_force.threshold);
  for (std::size_t i = 0; i < in.size(); ++i)
    ASSERT_EQ(out[i], std::abs(in[i]) < threshold ? 0.0f : in[i]);
}

// By hand: the Shannon entropy of what a value can be, with both signs at the threshold alike.
TEST(Gate, StoresTheEntropyAndTheSurvivors) {
  const auto bits = [](double zeros, double at_threshold, std::optional<Quantizer> quantizer = {}) {
    return bits_per_value({.compressed = true,
                           .sparsity = zeros,
                           .at_threshold = at_threshold,
                           .threshold = 1,
                           .quantizer = quantizer});
  };
  const Quantizer six_bits{.format = FloatFormat(3, 2)};
  EXPECT_EQ(bits(1, 0), 0);
  EXPECT_EQ(bits(0, 0), 32);
  EXPECT_DOUBLE_EQ(bits(0, 1), 1);      // a sign each
  EXPECT_DOUBLE_EQ(bits(.5, .5), 1.5);  // zero, +, - with 1/2, 1/4, 1/4
  EXPECT_DOUBLE_EQ(bits(.5, .25), 1.5 + .25 + .25 * 32);
  EXPECT_DOUBLE_EQ(bits(.5, 0, six_bits), 1 + .5 * 6);
  // Without pruning a code each, whatever became zero; left alone, as it was.
  EXPECT_EQ(bits_per_value({.compressed = true, .sparsity = .5, .quantizer = six_bits}), 6);
  EXPECT_EQ(bits_per_value({.compressed = false, .threshold = 1, .quantizer = six_bits}), 32);
}

TEST(Gate, RefusesOptionsOutOfRange) {
  using testing::HasSubstr;
  using testing::ThrowsMessage;
  const auto refused = [](auto change, const char* what) {
    GateOptions options = pruning_to(0.5);
    change(options);
    EXPECT_THAT([&] { new_gate(options); }, ThrowsMessage<InvalidArgument>(HasSubstr(what)));
  };
  refused([](GateOptions& o) { o.settings.sparsity = 1; }, "0 <= sparsity < 1");
  refused([](GateOptions& o) { o.settings.sparsity = std::nan(""); }, "0 <= sparsity < 1");
  refused([](GateOptions& o) { o.settings.bits = 9; }, "2 to 8 bits");
  refused([](GateOptions& o) { o.sample_size = 0; }, "sample_size > 0");
  refused([](GateOptions& o) { o.warmup = -1; }, "warmup >= 0");
  refused([](GateOptions& o) { o.schedule = {{3, 0.5}, {3, 0.6}}; }, "ascending");
  refused([](GateOptions& o) { o.schedule = {{3, 1.5}}; }, "0 <= sparsity < 1");
  refused([](GateOptions& o) { o.schedule.resize(9); }, "at most 8 points");
}

TEST(Gate, RefusesOptionsWithoutEffect) {
  using testing::HasSubstr;
  using testing::ThrowsMessage;
  const auto refused = [](GateOptions options, auto change, const char* what) {
    new_gate(options);
    change(options);
    EXPECT_THAT([&] { new_gate(options, "GradientGate"); },
                ThrowsMessage<InvalidArgument>(HasSubstr(std::string("[GradientGate] ") + what)));
  };
  using Options = GateOptions;
  const GateOptions plain{.seed = 1};
  refused(
      plain, [](Options& o) { o.seed.reset(); }, "expected a seed");
  constexpr auto kObjective = AllocationObjective::kMinCosine;
  constexpr auto kMethod = ThresholdMethod::kLognormal;
  refused(
      plain, [](Options& o) { o.settings.sparsity = 0.9; }, "expected a kind of pruning");
  refused(
      plain,
      [](Options& o) {
        o.schedule = {{0, 0.5}};
      },
      "expected a kind of pruning");
  refused(
      plain, [](Options& o) { o.allocation = kObjective; }, "expected a kind of pruning");
  refused(
      plain, [](Options& o) { o.settings.method = kMethod; }, "expected a kind of pruning");
  refused(
      plain, [](Options& o) { o.settings.format = FloatFormat(5, 2); },
      "expected bits = 8 with the format 1-5-2, got 0");
  refused(
      plain, [](Options& o) { o.settings.split = SplitMethod::kNormal; }, "expected bits");
  refused(
      plain, [](Options& o) { o.settings.scale_method = ScaleMethod::kError; }, "expected bits");
  refused(
      plain, [](Options& o) { o.settings.fixed_scale = 1; }, "expected bits");
  refused(
      plain, [](Options& o) { o.settings.rounding = Rounding::kNearest; }, "expected bits");
  refused(
      plain, [](Options& o) { o.settings.underflow = Underflow::kZero; }, "expected bits");

  GateOptions rounded{.seed = 1};
  rounded.settings.bits = 6;
  refused(
      rounded, [](Options& o) { o.settings.format = FloatFormat(5, 2); },
      "expected bits = 8 with the format 1-5-2, got 6");
  refused(
      rounded, [](Options& o) { o.dynamic_scale = true; }, "expected a fixed scale");
  const auto split_format = [](Options& o) {
    o.settings.format = FloatFormat(3, 2);
    o.settings.split = SplitMethod::kNormal;
  };
  refused(rounded, split_format, "expected either a format or a split method");
  const auto two_scales = [](Options& o) {
    o.settings.fixed_scale = 1;
    o.settings.scale_method = ScaleMethod::kError;
  };
  refused(rounded, two_scales, "expected either a fixed scale or a scale method");

  const auto both = [](Options& o) {
    o.schedule = {{0, 0.5}};
    o.allocation = kObjective;
  };
  refused(pruning_to(0.5), both, "expected either a schedule or an allocation");
  const auto top_k = [](Options& o) {
    o.settings.prune = PruneKind::kTopK;
    o.settings.method = kMethod;
  };
  refused(pruning_to(0.5), top_k, "expected either top-k or a threshold method");
}

// What was set, scheduled or allocated may change later, also to what nobody could have asked for.
TEST(Gate, StatesMayHoldWhatOptionsMayNot) {
  GateState gate = new_gate(pruning_to(0.5)), next = new_gate(pruning_to(0.5));
  set_sparsity(gate, 0);
  EXPECT_NO_THROW(resume_gate(next, gate));
  GateState plain = new_gate({.seed = 1});
  EXPECT_THROW(set_sparsity(plain, 0.5), InvalidArgument);
  plain.options.settings.sparsity = plain.target = 0.5;
  EXPECT_NO_THROW(check_gate_state(plain, "test"));
  EXPECT_NO_THROW(resume_gate(next, plain));
}

}  // namespace
}  // namespace slimgrad
