// The three things that compress_gradient does to the elements of a gradient, for the CPU, for
// devices with kernels and, in ATen's operators, for any device. All give the same bits.
#ifndef SLIMGRAD_TORCH_DECIDE_GRADIENT_BACKEND_H_
#define SLIMGRAD_TORCH_DECIDE_GRADIENT_BACKEND_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <slimgrad/treatment.h>

#include "kernels/measure/stratified_sample.h"

namespace slimgrad::torch_ops {

struct GradientBackend {
  // The values at every `every`-th position of the sample, counted in the order of memory.
  void (*gather)(const at::Tensor& dense, const kernels::StratifiedSample& sample,
                 std::uint64_t every, std::vector<float>& out);
  // The largest finite magnitude; 0 if there is none.
  double (*max_abs)(const at::Tensor& dense);
  // From `in` to `out`, which may be the same tensor.
  ApplyCounts (*apply)(const Treatment& treatment, const at::Tensor& in, const at::Tensor& out);
};

extern const GradientBackend kCpuBackend;
// For gates whose plans the host alone can make: treatment and maximum by kernels of src/device,
// the sample by ATen's operators; the host waits for sample, maximum and counts.
extern const GradientBackend kDeviceBackend;
extern const GradientBackend kAtenBackend;

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DECIDE_GRADIENT_BACKEND_H_
