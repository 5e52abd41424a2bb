// Statistics and plans are the same bits with every set of kernels, with one thread and several,
// and on every kind of CPU: golden/same_plans.txt was written on x86-64, and Arm gives the same
// (scripts/check-arm64). The values are made without the C library, whose functions differ.
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <slimgrad/gate.h>
#include <slimgrad/measure.h>
#include <slimgrad/threshold.h>

#include <slimgrad/seed.h>
#include "arrays/decide/gate_pass.h"
#include "base/portable_math.h"
#include "for_each_target.h"
#include "math/normal.h"

namespace slimgrad {
namespace {

// Lognormal, with zeros, a few large values, subnormals, Inf and NaN.
std::vector<float> gradient(std::size_t count, double log_mean, double log_std) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t hash = mix_bits(i);
    const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
    const double magnitude = portable_exp(log_mean + log_std * normal_quantile(uniform));
    values[i] = static_cast<float>(hash & 1 ? magnitude : -magnitude);
    if (i % 7 == 3) values[i] = 0;
    if (i % 5003 == 11) values[i] *= 900;
    if (i % 20011 == 5) values[i] = 1e-41f;
    if (i % 30011 == 9) values[i] = std::numeric_limits<float>::infinity();
    if (i % 30011 == 8) values[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}

std::vector<BFloat16Bits> as_bfloat16(const std::vector<float>& values) {
  std::vector<BFloat16Bits> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    halves[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
  return halves;
}

std::string text(double x) {
  char digits[40];
  std::snprintf(digits, sizeof digits, " %a", x);
  return digits;
}

std::string text(const TensorStats& stats) {
  std::uint64_t histogram = 0;
  for (const std::uint64_t count : stats.histogram.counts) histogram = mix_bits(histogram ^ count);
  return " " + std::to_string(stats.count) + " " + std::to_string(stats.zeros) + " " +
         std::to_string(stats.nonfinite) + " " + std::to_string(histogram) + text(stats.max_abs) +
         text(stats.log_mean) + text(stats.log_std) + text(stats.mean_abs) +
         text(stats.mean_square);
}

std::string text(const Treatment& treatment) {
  std::string line = text(treatment.threshold);
  if (const auto& quantizer = treatment.quantizer)
    line += " 1-" + std::to_string(quantizer->format.exponent_bits()) + "-" +
            std::to_string(quantizer->format.mantissa_bits()) + text(quantizer->scale) +
            (quantizer->underflow == Underflow::kZero ? " zero" : " stochastic");
  return line;
}

template <typename T>
TensorStats measured(const std::vector<T>& values, std::size_t num_threads) {
  Measurement measurement{std::span<const T>(values)};
  const std::size_t chunks = measurement.num_chunks();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < num_threads; ++i)
    threads.emplace_back(
        [&, i] { measurement.run(chunks * i / num_threads, chunks * (i + 1) / num_threads); });
  for (std::thread& thread : threads) thread.join();
  return measurement.finish();
}

std::vector<std::string> everything(std::size_t num_threads) {
  std::vector<std::string> lines;
  std::vector<TensorStats> layers;
  for (const auto& [log_mean, log_std] : {std::pair{-7.0, 1.5}, {-11.0, 0.4}, {2.0, 4.0}}) {
    const std::vector<float> values = gradient(200003, log_mean, log_std);
    lines.push_back("float32" + text(measured(values, num_threads)));
    lines.push_back("bfloat16" + text(measured(as_bfloat16(values), num_threads)));
    const TensorStats stats = measure_sample(std::span(values).first(65536), values.size());
    lines.push_back("sample" + text(stats));
    layers.push_back(stats);

    for (const ThresholdMethod method :
         {ThresholdMethod::kEmpirical, ThresholdMethod::kLognormal, ThresholdMethod::kMean}) {
      for (const double sparsity : {0.5, 0.85, 0.99}) {
        const double alpha = threshold(stats, sparsity, method).value;
        lines.push_back(std::string(method_name(method)) + text(alpha) +
                        text(expected_sparsity(stats, alpha, method)) +
                        text(expected_cosine(stats, alpha, method)));
      }
    }
    for (const SplitMethod split : {SplitMethod::kEmpirical, SplitMethod::kLognormal}) {
      for (const ScaleMethod scale :
           {ScaleMethod::kMax, ScaleMethod::kPredicted, ScaleMethod::kError}) {
        for (const int bits : {4, 6, 8}) {
          GradientSettings settings;
          settings.bits = bits;
          settings.split = split;
          settings.scale_method = scale;
          lines.push_back("quantize" + text(choose_treatment(stats, settings)));
          settings.prune = PruneKind::kStochastic;
          settings.sparsity = 0.8;
          const Treatment treatment = choose_treatment(stats, settings);
          lines.push_back("both" + text(treatment));
          TensorStats smaller = stats;
          smaller.mean_abs /= 64;
          smaller.max_abs /= 64;
          lines.push_back("guarded" + text(guard_treatment(treatment, smaller, settings)));
        }
      }
    }
    GradientSettings settings;
    settings.prune = PruneKind::kTopK;
    settings.sparsity = 0.9;
    lines.push_back("topk" + text(choose_treatment(stats, settings)));
  }
  for (const AllocationObjective objective :
       {AllocationObjective::kMinCosine, AllocationObjective::kMeanCosine,
        AllocationObjective::kMeanError, AllocationObjective::kTotalError})
    for (const LayerAllocation& layer :
         allocate(layers, 0.8, objective, ThresholdMethod::kEmpirical, 0.98))
      lines.push_back("allocate" + text(layer.threshold) + text(layer.sparsity));
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST(SamePlans, OnEveryTargetWithAnyNumberOfThreads) {
  std::ifstream file(SLIMGRAD_GOLDEN_DIR "/same_plans.txt");
  std::vector<std::string> golden;
  for (std::string line; std::getline(file, line);) golden.push_back(line);
  for_each_target([&](const char* target) {
    for (const std::size_t num_threads : {1, 3}) {
      SCOPED_TRACE(testing::Message() << target << ", threads: " << num_threads);
      const std::vector<std::string> lines = everything(num_threads);
      EXPECT_EQ(lines, golden) << "if plans were meant to change, the file is now:\n"
                               << joined(lines);
    }
  });
}

// A gate with everything on: what comes out, what it reports and what it remembers.
TEST(SamePlans, GatesDoTheSameOnEveryTarget) {
  const std::vector<float> in = gradient(200003, -7, 1.5);
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = 0.8;
  options.settings.bits = 6;
  options.refresh_every = 2;
  options.seed = 3;
  std::vector<std::vector<float>> outputs;
  std::vector<std::string> reports;
  for_each_target([&](const char* target) {
    SCOPED_TRACE(target);
    GateState gate = new_gate(options);
    for (std::size_t call = 0; call < 3; ++call) {
      std::vector<float> out(in.size());
      const auto [report, stats] = pass_gate(gate, in, out);
      const std::string line =
          text(stats) + text(gate.in_force) + text(report.cosine) + text(report.relative_error);
      if (reports.size() == call) {
        outputs.push_back(out);
        reports.push_back(line);
      }
      EXPECT_EQ(line, reports[call]);
      EXPECT_EQ(std::memcmp(out.data(), outputs[call].data(), out.size() * sizeof(float)), 0);
    }
  });
}

}  // namespace
}  // namespace slimgrad
