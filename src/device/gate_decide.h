// Statistics and treatment of a gradient on a device (gate.h): GatePass::see() and decide().
//
// One block. What is a sum of many doubles has the CPU's order: threads make the terms, and one
// thread, or one for each of several sums, adds them up.
#ifndef SLIMGRAD_DEVICE_GATE_DECIDE_H_
#define SLIMGRAD_DEVICE_GATE_DECIDE_H_

#include <cstdint>
#include <limits>

#include "device/gate.h"
#include "kernels/apply/make_treatment.h"
#include "math/decide/grid_rules.h"
#include "math/decide/treatment_rules.h"

namespace slimgrad::device {

struct GateDecideArguments {
  double* plan;
  double* stats;
  GateScratch* scratch;
  std::uint64_t size;
  std::int64_t stream;
  double largest;               // that the type holds
  std::uint32_t mantissa_bits;  // of the type: 23, 7 or 10
  FormatCrossover crossovers[kNumFormatCrossovers];
};
static_assert(sizeof(GateDecideArguments) == 56 + 24 * kNumFormatCrossovers);

struct GateDecide {
  static constexpr int kThreads = 256;
  static constexpr int kBins = LogHistogram::kNumBins;
  using Arguments = GateDecideArguments;
  struct Shared {
    std::uint64_t num_nonzero;
    std::uint32_t last_bin, last_but_first;  // of those that are not empty; kBins - 1 - the first
    StatsNumbers stats;
    double threshold, error;
    int scale_exponent;
    BinErrors::Covered covered[kBinsAnOctave];
    OctaveBin octave_bins[kBinsAnOctave];
    OctaveErrors octaves[OctaveErrors::kOctaves];
    double scale_errors[kThreads];
  };

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments&) { return 1; }
  // The bytes are those of the scratch memory: the sums, and what is made of them.
  static Traffic traffic(const Arguments&) { return {sizeof(GateSums), sizeof(GateScratch)}; }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    // All of the plan is read before the first step: the last one writes it.
    const GatePlan plan = {a.plan};
    const std::uint64_t draw = plan.draw(a.stream);
    const std::int64_t calls = plan.calls();
    const bool is_open = plan.is_open(a.size), is_scheduled = a.plan[kScheduleField] >= 0;
    const double scheduled =
        scheduled_sparsity(Schedule{a.plan + kScheduleField}, calls, a.plan[kSparsityField]);
    TreatmentSettings settings = settings_of(plan);
    settings.sparsity = scheduled >= 0 && scheduled < 1 ? scheduled : 0;
    const std::int64_t refresh = plan.whole(kRefreshEveryField, 0, std::int64_t{1} << 53);
    const bool is_fresh = a.plan[kDueField] != 0 || (refresh > 0 && calls % refresh == 0);
    ChosenTreatment in_force = in_force_of(plan, settings), treatment;

    measure(block, a, is_open && settings.bits > 0, shared);
    const bool is_treated = is_open && shared.stats.num_finite() > 0 && can_choose(settings);
    if (is_treated) {
      const Tensor tensor = {block, a, settings, shared};
      if (is_fresh)
        treatment = in_force = choose(shared.stats, settings, tensor);
      else
        treatment = guard(in_force, shared.stats, settings, tensor);
    }
    block.each([&](int thread) {
      if (thread != 0) return;
      treatment.threshold = writable_threshold(treatment.threshold, a.largest);
      const bool is_done = is_treated && make(a, treatment, draw);
      a.scratch->is_treated = is_done;
      a.scratch->draw = draw;
      a.scratch->mean_square = shared.stats.mean_square;
      if (is_treated) write_plan(a, in_force);
      if (is_scheduled) a.plan[kSparsityField] = scheduled;
      a.plan[kCallsField] = static_cast<double>(calls + 1);
      write_numbers(shared.stats, a.stats);
      write_report(a, settings, treatment, is_done, shared.stats);
    });
  }

 private:
  struct Schedule {
    const double* points;

    SLIMGRAD_HD int size() const {
      int size = 0;
      while (size < 8 && points[2 * size] >= 0) ++size;
      return size;
    }
    SLIMGRAD_HD std::int64_t call(int i) const {
      return GatePlan{points}.whole(2 * i, 0, std::int64_t{1} << 53);
    }
    SLIMGRAD_HD double sparsity(int i) const { return points[2 * i + 1]; }
  };

  // ---- the statistics --------------------------------------------------------------------------

  static SLIMGRAD_HD void measure(const Block<kThreads>& block, const Arguments& a,
                                  bool with_maximum, Shared& shared) {
    const GateSums& sums = a.scratch->sample;
    block.each([&](int thread) {
      if (thread != 0) return;
      shared.num_nonzero = 0;
      shared.last_bin = shared.last_but_first = 0;
    });
    block.each([&](int thread) {
      std::uint64_t count = 0;
      for (int k = thread; k < kBins; k += kThreads) {
        a.stats[kStatsFields + k] = static_cast<double>(sums.counts[k]);
        if (sums.counts[k] == 0) continue;
        count += sums.counts[k];
        raise_to(&shared.last_bin, static_cast<std::uint32_t>(k));
        raise_to(&shared.last_but_first, static_cast<std::uint32_t>(kBins - 1 - k));
      }
      if (count != 0) add_to(&shared.num_nonzero, count);
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      StatsNumbers stats;
      kernels::numbers_of(sums, shared.num_nonzero, SquareRoot(), stats);
      extrapolate(stats, a.size);
      if (with_maximum && stats.num_finite() > 0)
        stats.max_abs = kernels::magnitude_value(a.scratch->max_bits);
      shared.stats = stats;
    });
  }

  // ---- settings and the treatment in force -----------------------------------------------------

  static SLIMGRAD_HD FormatGrid format_at(const GatePlan& plan, int field) {
    const int exponent_bits = plan.small(field, 7), mantissa_bits = plan.small(field + 1, 6);
    const int most = 7 - exponent_bits;
    return {exponent_bits < 1 ? 1 : exponent_bits, mantissa_bits < most ? mantissa_bits : most};
  }

  static SLIMGRAD_HD TreatmentSettings settings_of(const GatePlan& plan) {
    TreatmentSettings settings;
    settings.prune = static_cast<PruneKind>(plan.small(kPruneField, 3));
    settings.method = static_cast<ThresholdMethod>(plan.small(kMethodField, 4));
    settings.bits = plan.bits();
    settings.has_format = plan.small(kExponentBitsField, 7) > 0;
    settings.format = format_at(plan, kExponentBitsField);
    settings.split = static_cast<SplitMethod>(plan.small(kSplitField, 2));
    settings.scale_method = static_cast<ScaleMethod>(plan.small(kScaleMethodField, 2));
    settings.fixed_scale = plan.fields[kFixedScaleField];
    settings.rounding = static_cast<Rounding>(plan.small(kRoundingField, 1));
    settings.underflow = static_cast<Underflow>(plan.small(kUnderflowField, 1));
    return settings;
  }

  // Whether it takes no method that the host alone has (torch/decide/state_place.h keeps such
  // gates there).
  static SLIMGRAD_HD bool can_choose(const TreatmentSettings& settings) {
    return settings.method != ThresholdMethod::kGennorm &&
           settings.method != ThresholdMethod::kNormal && settings.split != SplitMethod::kNormal &&
           settings.scale_method != ScaleMethod::kPredicted;
  }

  static SLIMGRAD_HD ChosenTreatment in_force_of(const GatePlan& plan,
                                                 const TreatmentSettings& settings) {
    ChosenTreatment treatment;
    treatment.threshold = plan.fields[kThresholdField];
    treatment.drops = plan.fields[kDropsField] != 0;
    treatment.quantizes = plan.fields[kFormatExponentField] != 0;
    if (!treatment.quantizes) return treatment;
    treatment.format = format_at(plan, kFormatExponentField);
    treatment.scale = plan.fields[kScaleField];
    treatment.rounding = settings.rounding;
    treatment.underflow = settings.underflow;
    return treatment;
  }

  // ---- what takes the histogram ----------------------------------------------------------------

  // For treatment_rules.h: each function is steps of the whole block, and all threads get its
  // result.
  struct Tensor {
    const Block<kThreads>& block;
    const Arguments& a;
    const TreatmentSettings& settings;
    Shared& shared;

    SLIMGRAD_HD int first_bin() const {
      return kBins - 1 - static_cast<int>(shared.last_but_first);
    }
    SLIMGRAD_HD int last_bin() const { return static_cast<int>(shared.last_bin); }

    SLIMGRAD_HD double threshold() const {
      const bool is_empirical = settings.prune == PruneKind::kStochastic &&
                                settings.method == ThresholdMethod::kEmpirical;
      if (is_empirical) add_prefix();
      block.each([&](int thread) {
        if (thread == 0) shared.threshold = find_threshold();
      });
      return shared.threshold;
    }

    SLIMGRAD_HD FormatGrid format() const {
      if (settings.split == SplitMethod::kLognormal)
        return lognormal_format(a.crossovers, settings.bits, shared.stats.log_std);
      FormatGrid best = {1, settings.bits - 2};
      double least = std::numeric_limits<double>::infinity();
      for (int exponent_bits = 1; exponent_bits <= settings.bits - 1; ++exponent_bits) {
        const FormatGrid format = {exponent_bits, settings.bits - 1 - exponent_bits};
        const double scale = settings.fixed_scale > 0 ? settings.fixed_scale
                                                      : this->scale(format, shared.stats.max_abs);
        const double error = relative_error({.grid = format,
                                             .scale = scale,
                                             .rounding = settings.rounding,
                                             .underflow = settings.underflow});
        if (error < least) {
          least = error;
          best = format;
        }
      }
      return best;
    }

    SLIMGRAD_HD double scale(const FormatGrid& format, double reach) const {
      return settings.scale_method == ScaleMethod::kError ? scale_of_least_error(format)
                                                          : reach / format.largest();
    }

   private:
    struct Shares {
      const std::uint32_t* counts;
      double total;
      SLIMGRAD_HD double operator[](int k) const { return static_cast<double>(counts[k]) / total; }
    };
    SLIMGRAD_HD Shares shares() const {
      return {a.scratch->sample.counts, static_cast<double>(shared.num_nonzero)};
    }

    // The sums in front of the bins.
    SLIMGRAD_HD void add_prefix() const {
      BinMoments* const prefix = a.scratch->prefix;
      const Shares shares = this->shares();
      block.each([&](int thread) {
        if (thread == 0) prefix[0] = {};
        for (int k = thread; k < kBins; k += kThreads)
          prefix[k + 1] = shares.counts[k] == 0
                              ? BinMoments()
                              : moments_of_bin(k, shares[k], shared.stats.max_abs);
      });
      // A thread for each moment.
      block.each([&](int thread) {
        if (thread >= 3) return;
        auto* const moment = reinterpret_cast<double*>(prefix) + thread;
        double sum = 0;
        for (int k = first_bin(); k <= last_bin(); ++k) {
          sum += moment[3 * (k + 1)];
          moment[3 * (k + 1)] = sum;
        }
      });
      block.each([&](int thread) {
        for (int k = last_bin() + 1 + thread; k < kBins; k += kThreads)
          prefix[k + 1] = prefix[last_bin() + 1];
      });
    }

    SLIMGRAD_HD double find_threshold() const {
      const StatsNumbers& stats = shared.stats;
      if (settings.prune != PruneKind::kStochastic)
        return magnitude_quantile(a.scratch->sample.counts, shared.num_nonzero, stats.zero_fraction,
                                  stats.max_abs, settings.sparsity);
      if (settings.sparsity <= stats.zero_fraction) return 0;
      const double nonzero = 1 - stats.zero_fraction;
      if (settings.method == ThresholdMethod::kEmpirical)
        return threshold_of(
            EmpiricalRule(shares(), static_cast<const BinMoments*>(a.scratch->prefix),
                          stats.max_abs, stats.mean_abs / nonzero, stats.mean_square / nonzero,
                          shared.num_nonzero == stats.num_nonzero()));
      if (settings.method == ThresholdMethod::kLognormal && stats.log_std > 0)
        return threshold_of(LognormalRule(stats.log_mean, stats.log_std, SquareRoot()));
      const bool is_single = settings.method == ThresholdMethod::kLognormal;
      return threshold_of(
          is_single ? MeanRule(portable_exp(stats.log_mean), portable_exp(2 * stats.log_mean))
                    : MeanRule(stats.mean_abs / nonzero, stats.mean_square / nonzero));
    }
    template <class Law>
    SLIMGRAD_HD double threshold_of(const Law& law) const {
      return portable_exp(solve_for_sparsity(law, settings.sparsity, shared.stats.zero_fraction));
    }

    // quantizer_error() of relative errors.
    SLIMGRAD_HD double relative_error(const BinErrors& errors) const {
      const std::uint32_t* const counts = a.scratch->sample.counts;
      double* const terms = a.scratch->terms;
      block.each([&](int thread) {
        if (thread >= kBinsAnOctave) return;
        // The first covered bin at this place in its octave.
        int k = first_bin();
        while (k <= last_bin() &&
               !(k % kBinsAnOctave == thread && counts[k] != 0 && errors.covers(k)))
          ++k;
        if (k <= last_bin()) shared.covered[thread] = errors.covered(k);
      });
      block.each([&](int thread) {
        for (int k = first_bin() + thread; k <= last_bin(); k += kThreads)
          terms[k] = counts[k] == 0 ? 0
                                    : errors.of_bin(k, static_cast<double>(counts[k]),
                                                    shared.covered[k % kBinsAnOctave]);
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        double sum = 0;
        for (int k = first_bin(); k <= last_bin(); ++k) sum += terms[k];
        shared.error = errors.total(sum);
      });
      return shared.error;
    }

    // HistogramGridError.
    SLIMGRAD_HD double scale_of_least_error(const FormatGrid& format) const {
      constexpr ErrorKind kKind = ErrorKind::kSquared;
      const ScaleExponents range = useful_scale_exponents(format, first_bin(), last_bin());
      block.each([&](int thread) {
        if (thread < kBinsAnOctave)
          shared.octave_bins[thread] = OctaveBin(thread, format.mantissa_bits, kKind);
      });
      block.each([&](int field) {
        if (field >= OctaveErrors::kOctaves) return;
        OctaveErrors octave;
        for (int j = 0; j < kBinsAnOctave; ++j) {
          const std::uint32_t count = a.scratch->sample.counts[field * kBinsAnOctave + j];
          if (count != 0)
            octave.add(field, static_cast<double>(count), shared.octave_bins[j], kKind);
        }
        shared.octaves[field] = octave;
      });
      block.each([&](int thread) {
        if (thread <= range.last - range.first)
          shared.scale_errors[thread] =
              error_at_scale(shared.octaves, format, range.first + thread, kKind);
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        int best = 0;
        for (int i = 1; i <= range.last - range.first; ++i)
          if (shared.scale_errors[i] < shared.scale_errors[best]) best = i;
        shared.scale_exponent = range.first + best;
      });
      return power_of_two(shared.scale_exponent);
    }
  };

  // ---- results ---------------------------------------------------------------------------------

  // Whether the type can hold the format's smallest value. (The CPU throws where it cannot.)
  static SLIMGRAD_HD bool make(const Arguments& a, const ChosenTreatment& chosen,
                               std::uint64_t draw) {
    kernels::LoopTreatment made;
    made.threshold = a.mantissa_bits == 23  ? kernels::threshold_for<float>(chosen.threshold)
                     : a.mantissa_bits == 7 ? kernels::threshold_for<BFloat16Bits>(chosen.threshold)
                                            : kernels::threshold_for<Float16Bits>(chosen.threshold);
    made.quantizes = chosen.quantizes;
    if (chosen.quantizes) {
      const auto scale = static_cast<float>(chosen.scale);
      const double top = kernels::largest_that_fits(chosen.format, scale, a.largest);
      if (!(top > 0)) return false;
      made.grid = kernels::grid_for(chosen.format, scale, top, chosen.rounding, chosen.underflow);
    }
    made.seed = draw;
    a.scratch->treatment = made;
    a.scratch->treats = treats_of(made, chosen.drops);
    return true;
  }

  static SLIMGRAD_HD void write_plan(const Arguments& a, const ChosenTreatment& in_force) {
    a.plan[kDueField] = 0;
    a.plan[kThresholdField] = in_force.threshold;
    a.plan[kDropsField] = in_force.drops;
    const bool quantizes = in_force.quantizes;
    a.plan[kFormatExponentField] = quantizes ? in_force.format.exponent_bits : 0;
    a.plan[kFormatMantissaField] = quantizes ? in_force.format.mantissa_bits : 0;
    a.plan[kScaleField] = quantizes ? in_force.scale : 0;
  }

  // That of a gradient which is left alone, or what is known of another one before it is treated.
  static SLIMGRAD_HD void write_report(const Arguments& a, const TreatmentSettings& settings,
                                       const ChosenTreatment& treatment, bool is_treated,
                                       const StatsNumbers& stats) {
    double* const report = a.stats + kStatsTensorSize;
    report[kElementsReport] = static_cast<double>(a.size);
    report[kSparsityWantedReport] = settings.prune == PruneKind::kNone ? 0 : settings.sparsity;
    report[kSparsityReport] = stats.zero_fraction;
    report[kAtThresholdReport] = 0;
    report[kCosineReport] = 1;
    report[kRelativeErrorReport] = 0;
    report[kNonfiniteReport] = static_cast<double>(stats.nonfinite);
    report[kCompressedReport] = is_treated;
    report[kSaturatedReport] =
        is_treated && treatment.quantizes &&
        saturates(stats.max_abs, treatment.scale, treatment.format.largest());
    report[kBiasReport] = 0;
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_GATE_DECIDE_H_
