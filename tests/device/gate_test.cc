// A gradient through a gate on devices: gradient, plan, statistics and report of the CPU's gate, to
// the bit, over several passes.
#include "device/gate_decide.h"

#include <gtest/gtest.h>

#include <slimgrad/error.h>
#include <slimgrad/gate.h>

#include "arrays/decide/gate_fields.h"
#include "device/emulate.h"
#include "formats/value_types.h"

namespace slimgrad::device {
namespace {

// The plan of a gate, as torch/decide/plan_tensor.cc writes it.
std::vector<double> plan_of(const GateState& gate) {
  const GateOptions& options = gate.options;
  const GradientSettings& settings = options.settings;
  std::vector<double> plan(kPlanFields);
  const auto set = [&](int field, auto value) {
    plan[static_cast<std::size_t>(field)] = static_cast<double>(value);
  };
  set(kMinElementsField, options.min_elements);
  set(kSampleSizeField, options.sample_size);
  set(kRefreshEveryField, options.refresh_every);
  set(kWarmupField, options.warmup);
  set(kPruneField, settings.prune);
  set(kMethodField, settings.method);
  set(kBitsField, settings.bits);
  set(kExponentBitsField, settings.format ? settings.format->exponent_bits() : 0);
  set(kMantissaBitsField, settings.format ? settings.format->mantissa_bits() : 0);
  set(kSplitField, settings.split);
  set(kScaleMethodField, settings.scale_method);
  set(kRoundingField, settings.rounding);
  set(kUnderflowField, settings.underflow);
  for (int i = 0; i < 8; ++i) {
    const bool is_used = i < static_cast<int>(options.schedule.size());
    const SparsityAt point = is_used ? options.schedule[static_cast<std::size_t>(i)]
                                     : SparsityAt{.call = -1, .sparsity = -1};
    set(kScheduleField + 2 * i, point.call);
    set(kScheduleField + 2 * i + 1, point.sparsity);
  }
  set(kSeedLowField, *options.seed & 0xffffffffu);
  set(kSeedHighField, *options.seed >> 32);
  set(kCallsField, gate.calls);
  set(kDueField, gate.due);
  set(kSparsityField, settings.sparsity);
  set(kFixedScaleField, settings.fixed_scale);
  set(kThresholdField, gate.in_force.threshold);
  set(kDropsField, gate.in_force.drops);
  const auto& quantizer = gate.in_force.quantizer;
  set(kFormatExponentField, quantizer ? quantizer->format.exponent_bits() : 0);
  set(kFormatMantissaField, quantizer ? quantizer->format.mantissa_bits() : 0);
  set(kScaleField, quantizer ? quantizer->scale : 0);
  return plan;
}

std::vector<double> stats_of(const GatePassage& passage) {
  std::vector<double> fields(kStatsTensorSize);
  write_numbers(passage.stats, fields.data());
  for (std::size_t bin = 0; bin < LogHistogram::kNumBins; ++bin)
    fields[kStatsFields + bin] = static_cast<double>(passage.stats.histogram.counts[bin]);
  visit_report_fields(
      [&](const ReportField&, const auto& value) { fields.push_back(static_cast<double>(value)); },
      passage.report);
  return fields;
}

TEST(GateFields, LieWhereTheVisitorsPutThem) {
  int size = 0, next = 0;
  const auto at = [&](const char* name, int width) {
    const std::pair<const char*, int> known[] = {{"min_elements", kMinElementsField},
                                                 {"sample_size", kSampleSizeField},
                                                 {"refresh_every", kRefreshEveryField},
                                                 {"warmup", kWarmupField},
                                                 {"prune", kPruneField},
                                                 {"method", kMethodField},
                                                 {"bits", kBitsField},
                                                 {"format", kExponentBitsField},
                                                 {"split", kSplitField},
                                                 {"scale_method", kScaleMethodField},
                                                 {"rounding", kRoundingField},
                                                 {"underflow", kUnderflowField},
                                                 {"target", kTargetField},
                                                 {"asked_scale", kAskedScaleField},
                                                 {"allocation", kAllocationField},
                                                 {"dynamic_scale", kDynamicScaleField},
                                                 {"schedule", kScheduleField},
                                                 {"seed", kSeedLowField},
                                                 {"calls", kCallsField},
                                                 {"due", kDueField},
                                                 {"sparsity", kSparsityField},
                                                 {"fixed_scale", kFixedScaleField},
                                                 {"threshold", kThresholdField},
                                                 {"drops", kDropsField},
                                                 {"quantizer", kFormatExponentField},
                                                 {"good_steps", kGoodStepsField},
                                                 {"seen_calls", kSeenCallsField}};
    ASSERT_LT(next, static_cast<int>(std::size(known)));
    EXPECT_STREQ(known[next].first, name);
    EXPECT_EQ(known[next++].second, size) << name;
    size += width;
  };
  const GateState gate;
  visit_gate_fields(
      [&]<typename T>(const GateField& field, const T&) {
        at(field.name, std::is_same_v<T, std::optional<FloatFormat>>     ? 2
                       : std::is_same_v<T, std::optional<Quantizer>>     ? 3
                       : std::is_same_v<T, std::optional<std::uint64_t>> ? 2
                       : std::is_same_v<T, std::vector<SparsityAt>>      ? 2 * kMostSchedulePoints
                                                                         : 1);
      },
      gate);
  EXPECT_EQ(size, kPlanFields);
  const std::pair<const char*, int> reports[] = {
      {"elements", kElementsReport},   {"sparsity_wanted", kSparsityWantedReport},
      {"sparsity", kSparsityReport},   {"at_threshold", kAtThresholdReport},
      {"cosine", kCosineReport},       {"relative_error", kRelativeErrorReport},
      {"nonfinite", kNonfiniteReport}, {"compressed", kCompressedReport},
      {"saturated", kSaturatedReport}, {"bias", kBiasReport}};
  int index = 0;
  const slimgrad::GateReport report;
  visit_report_fields(
      [&](const ReportField& field, const auto&) {
        EXPECT_STREQ(reports[index].first, field.name);
        EXPECT_EQ(reports[index].second, index);
        ++index;
      },
      report);
  EXPECT_EQ(index, kReportFields);
}

template <typename T>
struct OnDevice {
  std::vector<double> plan, stats = std::vector<double>(kStatsTensorSize + kReportFields);

  void pass(const Array<T>& in, Array<T>& out, std::int64_t stream, std::uint32_t shuffle) {
    const auto scratch = std::make_unique<GateScratch>();
    std::memset(static_cast<void*>(scratch.get()), 0xcd, sizeof(GateScratch));
    std::memset(static_cast<void*>(scratch.get()), 0, kGateScratchZeros);
    const std::uint64_t size = in.size();
    launch<GateSee<T>>({in.data(), size, plan.data(), scratch.get(), stream}, shuffle);
    GateDecideArguments decide = {.plan = plan.data(),
                                  .stats = stats.data(),
                                  .scratch = scratch.get(),
                                  .size = size,
                                  .stream = stream,
                                  .largest = kLargest<T>,
                                  .mantissa_bits = std::is_same_v<T, float>          ? 23u
                                                   : std::is_same_v<T, BFloat16Bits> ? 7u
                                                                                     : 10u,
                                  .crossovers = {}};
    std::copy_n(kFormatCrossovers, kNumFormatCrossovers, decide.crossovers);
    launch<GateDecide>(decide, shuffle);
    launch<GateApply<T>>({in.data(), out.data(), size, scratch.get()}, shuffle);
    launch<GateCompare<T>>({out.data(), size, plan.data(), stats.data(), scratch.get()}, shuffle);
  }
};

std::vector<GateOptions> all_options() {
  std::vector<GateOptions> all;
  const auto add = [&](const auto& change) {
    GateOptions options;
    options.seed = 0x123456789abcdefu + all.size();
    options.min_elements = 1;
    change(options, options.settings);
    all.push_back(options);
  };
  for (const auto method :
       {ThresholdMethod::kEmpirical, ThresholdMethod::kLognormal, ThresholdMethod::kMean})
    for (const double sparsity : {0.3, 0.95})
      add([&](GateOptions&, GradientSettings& s) {
        s.prune = PruneKind::kStochastic;
        s.method = method;
        s.sparsity = sparsity;
      });
  for (const auto kind : {PruneKind::kTopK, PruneKind::kTopKStochastic})
    add([&](GateOptions&, GradientSettings& s) {
      s.prune = kind;
      s.sparsity = 0.7;
    });
  for (const int bits : {2, 4, 6, 8})
    add([&](GateOptions&, GradientSettings& s) { s.bits = bits; });
  for (const bool prunes : {false, true})
    for (const auto scale : {ScaleMethod::kMax, ScaleMethod::kError})
      add([&](GateOptions& o, GradientSettings& s) {
        s.bits = 5;
        s.scale_method = scale;
        s.rounding = Rounding::kNearest;
        s.underflow = Underflow::kZero;
        o.refresh_every = 2;
        if (!prunes) return;
        s.prune = PruneKind::kStochastic;
        s.sparsity = 0.6;
      });
  add([](GateOptions& o, GradientSettings& s) {
    s.bits = 6;
    s.split = SplitMethod::kLognormal;
    o.refresh_every = 0;
  });
  add([](GateOptions& o, GradientSettings& s) {
    s.bits = 8;
    s.format = FloatFormat(5, 2);
    s.fixed_scale = 0x1p-9;
    s.prune = PruneKind::kTopK;
    o.schedule = {{0, 0.1}, {2, 0.8}};
  });
  add([](GateOptions& o, GradientSettings& s) {
    s.bits = 4;
    s.prune = PruneKind::kStochastic;
    s.sparsity = 0.8;
    o.warmup = 1;
    o.min_elements = 500;
    o.sample_size = 600;
    o.refresh_every = 0;
  });
  return all;
}

template <typename T>
void compare(std::size_t size, Kind kind, const GateOptions& options, const std::string& what) {
  GateState gate = new_gate(options);
  OnDevice<T> device{plan_of(gate)};
  for (int pass = 0; pass < 3; ++pass) {
    Array<T> values = make_values<T>(size, static_cast<std::size_t>(pass % 2), kind, 11);
    if (pass == 2)  // smaller by far, so that what is in force has to be guarded
      for (T& value : values.span())
        value = kernels::from_float<T>(kernels::to_float(value) * 0x1p-6f);
    Array<T> expected(size, 0), got(size, 1);
    GatePassage passage;
    try {
      passage = pass_gate(gate, std::as_const(values).span(), expected.span(), pass);
    } catch (const InvalidArgument&) {
      return;  // a scale at which the type holds nothing
    }
    if (auto& quantizer = gate.in_force.quantizer) {  // as a plan holds it
      quantizer->rounding = options.settings.rounding;
      quantizer->underflow = options.settings.underflow;
    }
    const auto shuffle = static_cast<std::uint32_t>(size + static_cast<std::size_t>(pass)) % 7;
    if (pass == 1) {  // in place
      device.pass(values, values, pass, shuffle);
      got = values;
    } else {
      device.pass(values, got, pass, shuffle);
    }
    const std::string where =
        what + ", " + describe<T>(size, 0, kind) + ", pass " + std::to_string(pass);
    const std::vector<double> stats = stats_of(passage), plan = plan_of(gate);
    for (std::size_t i = 0; i < plan.size(); ++i)
      ASSERT_EQ(plan[i], device.plan[i]) << where << ", field " << i << " of the plan";
    for (std::size_t i = 0; i < stats.size(); ++i)
      ASSERT_EQ(stats[i], device.stats[i]) << where << ", field " << i << " of the statistics";
    ASSERT_TRUE(same_bits(expected.span(), got.span())) << where;
  }
}

template <typename T>
class DeviceGate : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceGate, ValueTypes);

TYPED_TEST(DeviceGate, PassesGradientsAsTheCpu) {
  using T = TypeParam;
  const std::vector<GateOptions> options = all_options();
  for (std::size_t i = 0; i < options.size(); ++i)
    for (const std::size_t size : {1, 3, 127, 1000, 4099})
      for (const Kind kind : kKinds) {
        compare<T>(size, kind, options[i], "options " + std::to_string(i));
        if (this->HasFatalFailure()) return;
      }
}

// The sample is a part, several blocks add to it, and a part of it is compared.
TYPED_TEST(DeviceGate, PassesLargeGradientsAsTheCpu) {
  using T = TypeParam;
  const std::vector<GateOptions> options = all_options();
  for (std::size_t i = 0; i < options.size(); i += 3) {
    compare<T>(150'001, kKinds[i % 7], options[i], "options " + std::to_string(i));
    if (this->HasFatalFailure()) return;
  }
}

// A plan that something overwrote sends no kernel out of its arrays.
TYPED_TEST(DeviceGate, SurvivesAnyPlan) {
  using T = TypeParam;
  const double bad[] = {std::nan(""), -1, 0, 1e300, -1e300, INFINITY, 0.5, 3, 1e10};
  const Array<T> values = make_values<T>(3000, 0, Kind::kSomeBad, 3);
  GateOptions options;
  options.seed = 1;
  options.settings.bits = 5;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = 0.5;
  for (int field = 0; field < kPlanFields; ++field)
    for (const double value : bad) {
      OnDevice<T> device{plan_of(new_gate(options))};
      device.plan[static_cast<std::size_t>(field)] = value;
      Array<T> out(3000, 0);
      device.pass(values, out, 0, 1);
      device.pass(values, out, 0, 2);
    }
}

// What the host alone can find: the gradient is left as it is.
TEST(DeviceGate, LeavesWhatItCannotPlan) {
  GateOptions options;
  options.seed = 1;
  options.min_elements = 1;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = 0.5;
  options.settings.method = ThresholdMethod::kGennorm;
  const Array<float> values = make_values<float>(3000, 0, Kind::kNormal, 3);
  Array<float> out(3000, 0);
  OnDevice<float> device{plan_of(new_gate(options))};
  device.pass(values, out, 0, 1);
  EXPECT_TRUE(same_bits(values.span(), std::as_const(out).span()));
  EXPECT_EQ(device.stats[kStatsTensorSize + kCompressedReport], 0);
  EXPECT_EQ(device.plan[kCallsField], 1);
}

}  // namespace
}  // namespace slimgrad::device
