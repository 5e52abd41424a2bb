#include <ATen/ops/arange.h>
#include <slimgrad/slimgrad.h>
#include <slimgrad/torch.h>

#include <cstdio>

int main() {
  const at::Tensor gradient = at::arange(1, 1001, at::kFloat);
  const slimgrad::TensorStats stats = slimgrad::measure(gradient);
  std::printf("%llu %.1f\n", static_cast<unsigned long long>(stats.count), stats.max_abs);
}
