#include <slimgrad/slimgrad.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> gradient;
  for (int i = 1; i <= 1000; ++i) gradient.push_back(1e-3f * static_cast<float>(i));
  const slimgrad::TensorStats stats = slimgrad::measure(gradient);
  const auto found = slimgrad::threshold(stats, 0.9, slimgrad::ThresholdMethod::kEmpirical);
  std::printf("%s %.3f %s\n", SLIMGRAD_VERSION, found.sparsity,
              slimgrad::best_format(8, 2.5, 4.5).name().c_str());
}
