#include "trainer/fake_int4.h"

#include <cmath>

namespace slimgrad::trainer {
namespace {

torch::Tensor straight_through(const torch::Tensor& x, const torch::Tensor& rounded) {
  return x + (rounded - x).detach();
}

}  // namespace

torch::Tensor fake_int4_weight(const torch::Tensor& weight) {
  const torch::Tensor rows = weight.detach().reshape({weight.size(0), -1});
  const torch::Tensor scale = (rows.abs().amax(1, /*keepdim=*/true) / 7).clamp_min(1e-30);
  return straight_through(weight, (rows / scale).round().mul(scale).view_as(weight));
}

torch::Tensor fake_int4_input(const torch::Tensor& input) {
  const torch::Tensor x = input.detach();
  const double low = x.min().item<double>() < 0 ? -7 : 0, high = low < 0 ? 7 : 15;
  const double largest = x.abs().max().item<double>();
  if (!(largest > 0)) return input;
  const auto rounded = [&](const torch::Tensor& values, double scale) {
    return (values / scale).round_().clamp_(low, high).mul_(scale);
  };
  // An odd stride, so that a sample sees all channels.
  constexpr std::int64_t kSample = 1 << 14;
  const torch::Tensor flat = x.reshape(-1);
  const torch::Tensor sample = flat.slice(0, 0, flat.numel(), (flat.numel() / kSample) | 1);
  double best_scale = largest / high, least_error = INFINITY;
  for (const double share : {1.0, 0.8, 0.6, 0.45, 0.33, 0.25, 0.15, 0.1}) {
    const double scale = share * largest / high;
    const double error = (rounded(sample, scale) - sample).square_().sum().item<double>();
    if (error < least_error) {
      least_error = error;
      best_scale = scale;
    }
  }
  return straight_through(input, rounded(x, best_scale));
}

}  // namespace slimgrad::trainer
