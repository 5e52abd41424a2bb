// slimgrad fit: which family of distributions describes a tensor best.
#include <slimgrad/error.h>
#include <slimgrad/measure.h>

#include <iterator>
#include <memory>

#include "program/output.h"
#include "program/progress.h"
#include "program/subcommand.h"
#include "program/table.h"
#include "program/tensor_files.h"

namespace slimgrad::program {
namespace {

// Sorting and seven families take many times as long as reading.
constexpr std::uint64_t kWeight = 32;

Sample sample_of(const FloatTensor& tensor, Progress& progress) {
  if (tensor.type == DType::kFloat64) {
    const std::vector<double> values = tensor.read_doubles(progress);
    check_usable(values);
    progress.step("sorting");
    return Sample(values);
  }
  const std::vector<float> values = tensor.read_floats(progress).values;
  check_usable(values);
  progress.step("sorting");
  return Sample(values);
}

Json fit_json(const Sample& sample, Family family) {
  const Distribution fitted = fit(sample, family);
  Json params = Json::object();
  for (std::size_t i = 0; i < fitted.params().size(); ++i)
    params[std::string(parameter_names(family)[i])] = fitted.params()[i];
  return {{"family", family_name(family)},
          {"params", std::move(params)},
          {"ks", ks_distance(sample, fitted)},
          {"wasserstein_1", wasserstein_distance(sample, fitted, 1)},
          {"wasserstein_2", wasserstein_distance(sample, fitted, 2)}};
}

// Every family; one that has no fit (all magnitudes equal) says so in its place.
Json fits_json(const Sample& sample, Progress& progress) {
  Json fits = Json::array();
  for (const Family family : kAllFamilies) {
    progress.step(std::string(family_name(family)));
    progress.done_of(1 + fits.size(), 1 + std::size(kAllFamilies));
    try {
      fits.push_back(fit_json(sample, family));
    } catch (const InvalidArgument& error) {
      fits.push_back({{"family", family_name(family)}, {"error", error.what()}});
    }
  }
  return fits;
}

// The family with the least KS distance; null if none could be fitted.
Json best_of(const Json& fits) {
  const Json* best = nullptr;
  for (const Json& fit : fits)
    if (fit.contains("ks") && (best == nullptr || fit["ks"] < (*best)["ks"])) best = &fit;
  return best == nullptr ? Json() : (*best)["family"];
}

std::string fits_text(const Json& fits, const Json& best) {
  Table table({{"family", Align::kLeft},
               {"KS"},
               {"Wasserstein-1"},
               {"Wasserstein-2"},
               {"", Align::kLeft},
               {"parameters", Align::kLeft}});
  for (const Json& fit : fits) {
    if (fit.contains("error")) {
      table.add({fit["family"], "", "", "", "", fit["error"]});
      continue;
    }
    std::string params;
    for (const auto& [name, value] : fit["params"].items())
      params += (params.empty() ? "" : ", ") + name + " " + number(value);
    table.add({fit["family"], number(fit["ks"]), number(fit["wasserstein_1"]),
               number(fit["wasserstein_2"]), fit["family"] == best ? "best" : "", params});
  }
  return table.text();
}

Report report_files(const TensorFileOptions& options) {
  Report report;
  report.json["files"] = Json::array();
  std::string sections;
  for_each_tensor(
      options, "fitting", kWeight, report, [&](const FloatTensor& tensor, Progress& progress) {
        const Sample sample = sample_of(tensor, progress);
        const std::uint64_t num_fitted = sample.magnitudes().size();
        Json entry = describe(tensor);
        entry["fitted_values"] = num_fitted;
        entry["fits"] = fits_json(sample, progress);
        entry["best"] = best_of(entry["fits"]);
        sections += (sections.empty() ? "" : "\n") + title(tensor);
        if (num_fitted != tensor.num_values())
          sections += "Fitted to the " + std::to_string(num_fitted) +
                      " finite non-zero values of " + std::to_string(tensor.num_values()) + ".\n";
        sections += '\n' + fits_text(entry["fits"], entry["best"]);
        report.json["files"].push_back(std::move(entry));
      });
  report.text = sections + report.text;
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<TensorFileOptions>();
  declare_tensor_files(flags, *options).required();
  return [options] { return report_files(*options); };
}

constexpr char kExample[] =
    R"help(Zeros, NaN and Inf are left out; the least KS distance is best. Distances are of the
signed values for symmetric families, of |x| for lognormal and loglaplace. float64 is
fitted as it is. Sorting needs 16 bytes of memory a value, beside the values. The tensors
of a .safetensors file are fitted one after the other; --tensor NAME chooses.

Example:
  $ python -c "import numpy; x = -numpy.log(numpy.arange(1, 1000) / 1000); numpy.save('g.npy', numpy.r_[x, -x])"
  $ slimgrad fit g.npy
  g.npy: float64, 1998

  family              KS  Wasserstein-1  Wasserstein-2        parameters
  ----------  ----------  -------------  -------------  ----  ----------------------------------------
  lognormal    0.0702253       0.379187        1.81686        log_mean -0.5745, log_std 1.2685
  normal        0.121347       0.197604       0.254535        scale 1.40121
  laplace      0.0016733      0.0045857      0.0466322  best  scale 0.996624
  cauchy       0.0874436            inf            inf        scale 0.647555
  loglaplace   0.0641695        8.71488            inf        log_median -0.366513, log_scale 0.963552
  uniform       0.576312        2.45726        2.74848        scale 6.90776
  gennorm     0.00171535     0.00452263      0.0427279        shape 1.01527, scale 1.01807)help";

const bool registered =
    register_subcommand({"fit", "Find the distribution that fits tensors best", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
