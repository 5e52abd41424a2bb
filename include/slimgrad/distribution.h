// The families of distributions that gradients are compared with.
//
// Five are laws of the signed value, symmetric around zero; their cdf and quantile are those of the
// signed value, as in SciPy with loc = 0:
//   normal {scale}, laplace {scale}, cauchy {scale}, uniform {scale} on [-scale, scale],
//   gennorm {shape, scale} with density shape / (2 scale Gamma(1/shape)) exp(-(|x|/scale)^shape).
// Two are laws of the magnitude:
//   lognormal {log_mean, log_std}, loglaplace {log_median, log_scale}: ln|x| is normal or Laplace.
//
// A Distribution is a small immutable value; it may be shared between threads.
#ifndef SLIMGRAD_DISTRIBUTION_H_
#define SLIMGRAD_DISTRIBUTION_H_

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace slimgrad {

enum class Family { kLognormal, kNormal, kLaplace, kCauchy, kLoglaplace, kUniform, kGennorm };

inline constexpr std::array kAllFamilies = {
    Family::kLognormal,  Family::kNormal,  Family::kLaplace, Family::kCauchy,
    Family::kLoglaplace, Family::kUniform, Family::kGennorm};

std::string_view family_name(Family family);  // "lognormal", ...
Family parse_family(std::string_view name);   // throws InvalidArgument
// The names of the parameters in their order, e.g. {"shape", "scale"}.
std::span<const std::string_view> parameter_names(Family family);
// Whether the law is one of the signed value, symmetric around zero.
bool is_symmetric(Family family);

class Distribution {
 public:
  // Throws InvalidArgument if the number of parameters is wrong or one is out of its range.
  Distribution(Family family, std::vector<double> params);

  Family family() const { return family_; }
  const std::vector<double>& params() const { return params_; }

  double density(double x) const;
  double cdf(double x) const;
  double quantile(double p) const;  // throws InvalidArgument unless 0 <= p <= 1

  // P(|X| <= x): twice the cdf minus one for the symmetric families.
  double cdf_of_magnitude(double x) const;

 private:
  Family family_;
  std::vector<double> params_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_DISTRIBUTION_H_
