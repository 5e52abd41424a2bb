// Values of generalized normal laws for tests: golden ones, and generated ones.
#ifndef SLIMGRAD_TESTS_GENNORM_SAMPLE_H_
#define SLIMGRAD_TESTS_GENNORM_SAMPLE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace slimgrad {

// The sample of tests/golden/gennorm.json with that name, e.g. "beta_0.4": 20000 little-endian
// doubles. Three of the five are kept here.
inline std::vector<double> golden_sample(const std::string& name) {
  const std::string path = std::string(SLIMGRAD_GOLDEN_DIR) + "/gennorm_" + name + ".f64";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("no golden file " + path);
  std::vector<double> values(20000);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(double)));
  if (!file) throw std::runtime_error("too short: " + path);
  return values;
}

// |X| = scale Z^(1/shape) with Z of the Gamma(1/shape) law, and a fair sign.
inline std::vector<float> generated_sample(double shape, double scale, std::size_t num_values,
                                           std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  // Gamma(a) = Gamma(a + 1) U^(1/a): in this form small a neither underflows nor loses digits.
  std::gamma_distribution<double> gamma(1 / shape + 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<float> values(num_values);
  for (float& value : values) {
    const double magnitude = std::pow(gamma(generator), 1 / shape) * (1 - uniform(generator));
    value = static_cast<float>((generator() >> 63) != 0 ? scale * magnitude : -scale * magnitude);
  }
  return values;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_GENNORM_SAMPLE_H_
