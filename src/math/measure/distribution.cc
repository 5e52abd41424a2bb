#include <slimgrad/distribution.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "base/names.h"
#include "math/measure/gennorm.h"
#include "math/normal.h"

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr NameTable<Family, 7> kFamilyNames = {{{Family::kLognormal, "lognormal"},
                                                {Family::kNormal, "normal"},
                                                {Family::kLaplace, "laplace"},
                                                {Family::kCauchy, "cauchy"},
                                                {Family::kLoglaplace, "loglaplace"},
                                                {Family::kUniform, "uniform"},
                                                {Family::kGennorm, "gennorm"}}};

constexpr std::string_view kScale[] = {"scale"};
constexpr std::string_view kShapeScale[] = {"shape", "scale"};
constexpr std::string_view kLognormalNames[] = {"log_mean", "log_std"};
constexpr std::string_view kLoglaplaceNames[] = {"log_median", "log_scale"};

// Each family in a standard form: cdf and density of one variable, scale 1. The lower tails are
// accurate to a few ulp, and by symmetry so are the upper ones.
double laplace_cdf(double t) { return t < 0 ? std::exp(t) / 2 : 1 - std::exp(-t) / 2; }

// p <= 1/2: ln 2p. Otherwise -ln 2(1 - p), where 1 - p is exact; near the middle both are ln of
// nearly one, which log1p of the exact 2p - 1 serves.
double laplace_quantile(double p) {
  if (p < 0.25) return std::log(2 * p);
  if (p > 0.75) return -std::log(2 * (1 - p));
  return p < 0.5 ? std::log1p(2 * p - 1) : -std::log1p(1 - 2 * p);
}

// atan2 keeps the tail, where 1/2 + atan(t)/pi cancels.
double cauchy_cdf(double t) {
  return t < 0 ? std::atan2(1, -t) / std::numbers::pi : 1 - std::atan2(1, t) / std::numbers::pi;
}

double cauchy_quantile(double p) {
  if (p == 0) return -kInfinity;
  if (p == 1) return kInfinity;
  if (p < 0.25) return -1 / std::tan(std::numbers::pi * p);
  if (p > 0.75) return 1 / std::tan(std::numbers::pi * (1 - p));
  return std::tan(std::numbers::pi * (p - 0.5));
}

double uniform_cdf(double t) { return std::clamp((1 + t) / 2, 0.0, 1.0); }

}  // namespace

std::string_view family_name(Family family) { return name_of(kFamilyNames, family); }

Family parse_family(std::string_view name) {
  return parse_name(kFamilyNames, "distribution", "family", name);
}

std::span<const std::string_view> parameter_names(Family family) {
  switch (family) {
    case Family::kLognormal:
      return kLognormalNames;
    case Family::kLoglaplace:
      return kLoglaplaceNames;
    case Family::kGennorm:
      return kShapeScale;
    default:
      return kScale;
  }
}

bool is_symmetric(Family family) {
  return family != Family::kLognormal && family != Family::kLoglaplace;
}

Distribution::Distribution(Family family, std::vector<double> params)
    : family_(family), params_(std::move(params)) {
  const auto names = parameter_names(family_);
  check(params_.size() == names.size(), "distribution",
        std::string(family_name(family_)) + " to have " + std::to_string(names.size()) +
            (names.size() == 1 ? " parameter" : " parameters"),
        params_.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    // Scales, shapes and spreads are positive; a location may have any sign.
    const bool location = !is_symmetric(family_) && i == 0;
    check(std::isfinite(params_[i]) && (location || params_[i] > 0), "distribution",
          std::string(family_name(family_)) + "'s " + std::string(names[i]) +
              (location ? " to be finite" : " to be positive and finite"),
          params_[i]);
  }
}

double Distribution::density(double x) const {
  const double scale = params_.back();
  const double t = x / scale;
  switch (family_) {
    case Family::kNormal:
      return normal_density(t) / scale;
    case Family::kLaplace:
      return std::exp(-std::abs(t)) / (2 * scale);
    case Family::kCauchy:
      return 1 / (std::numbers::pi * scale * (1 + t * t));
    case Family::kUniform:
      return std::abs(t) <= 1 ? 1 / (2 * scale) : std::isnan(t) ? t : 0.0;
    case Family::kGennorm:
      return gennorm_density({params_[0], scale}, x);
    case Family::kLognormal:
    case Family::kLoglaplace:
      break;
  }
  if (std::isnan(x)) return x;
  if (!(x > 0) || x == kInfinity) return 0;
  const double y = (std::log(x) - params_[0]) / scale;
  const double density_of_log =
      family_ == Family::kLognormal ? normal_density(y) : std::exp(-std::abs(y)) / 2;
  return density_of_log / scale / x;
}

double Distribution::cdf(double x) const {
  if (std::isnan(x)) return x;
  const double scale = params_.back();
  switch (family_) {
    case Family::kNormal:
      return normal_cdf(x / scale);
    case Family::kLaplace:
      return laplace_cdf(x / scale);
    case Family::kCauchy:
      return cauchy_cdf(x / scale);
    case Family::kUniform:
      return uniform_cdf(x / scale);
    case Family::kGennorm:
      return gennorm_cdf({params_[0], scale}, x);
    case Family::kLognormal:
    case Family::kLoglaplace:
      break;
  }
  if (!(x > 0)) return 0;
  const double y = (std::log(x) - params_[0]) / scale;
  return family_ == Family::kLognormal ? normal_cdf(y) : laplace_cdf(y);
}

double Distribution::quantile(double p) const {
  check(p >= 0 && p <= 1, "quantile", "a probability between 0 and 1", p);
  const double scale = params_.back();
  switch (family_) {
    case Family::kNormal:
      return scale * normal_quantile(p);
    case Family::kLaplace:
      return scale * laplace_quantile(p);
    case Family::kCauchy:
      return scale * cauchy_quantile(p);
    case Family::kUniform:
      return scale * (2 * p - 1);
    case Family::kGennorm:
      return gennorm_quantile({params_[0], scale}, p);
    case Family::kLognormal:
      return std::exp(params_[0] + scale * normal_quantile(p));
    case Family::kLoglaplace:
      return std::exp(params_[0] + scale * laplace_quantile(p));
  }
  return 0;  // not reached: the switch is complete
}

double Distribution::cdf_of_magnitude(double x) const {
  if (std::isnan(x)) return x;
  if (!(x > 0)) return 0;
  // Twice the cdf minus one would cancel for small x.
  const double scale = params_.back();
  const double t = x / scale;
  switch (family_) {
    case Family::kNormal:
      return std::erf(t / std::numbers::sqrt2);
    case Family::kLaplace:
      return -std::expm1(-t);
    case Family::kCauchy:
      return 2 * std::atan(t) / std::numbers::pi;
    case Family::kUniform:
      return std::min(t, 1.0);
    case Family::kGennorm:
      return gennorm_lower_moment({params_[0], scale}, 0, x);
    case Family::kLognormal:
    case Family::kLoglaplace:
      return cdf(x);
  }
  return 0;  // not reached: the switch is complete
}

}  // namespace slimgrad
