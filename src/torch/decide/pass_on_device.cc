// A gate's pass by the kernels of src/device/gate.h: four, and a fill of memory. The host knows
// nothing of what they find, and so launches the same for all settings: a CUDA graph may hold them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>

#include "device/gate_decide.h"
#include "formats/value_types.h"
#include "torch/decide/plan_tensor.h"
#include "torch/decide/state_place.h"
#include "torch/device/launch.h"

namespace slimgrad::torch_ops {
namespace {

std::atomic<std::uint64_t> num_passes{0};

// Bits of the mantissa, which tell the types from each other.
template <typename T>
constexpr std::uint32_t kMantissaBits = 23;
template <>
constexpr std::uint32_t kMantissaBits<BFloat16Bits> = 7;
template <>
constexpr std::uint32_t kMantissaBits<Float16Bits> = 10;

}  // namespace

std::uint64_t num_device_passes() { return num_passes; }

void pass_on_device(const at::Tensor& in, const at::Tensor& out, const at::Tensor& plan,
                    const at::Tensor& stats, std::int64_t stream) {
  using device::GateScratch;
  const auto size = static_cast<std::uint64_t>(in.numel());
  const at::Tensor memory = at::empty({sizeof(GateScratch)}, plan.options().dtype(at::kByte));
  auto* const scratch = written_by_kernel<GateScratch>(memory);
  auto* const plan_fields = written_by_kernel<double>(plan);
  auto* const stats_fields = written_by_kernel<double>(stats);
  // The kernels of two threads that pass through one gate must not mix.
  const auto lock = lock_plans();
  launcher_of(in.device()).fill(scratch, 0, device::kGateScratchZeros, in.device());
  with_element_type(in.scalar_type(), [&]<typename T>() {
    const T* const values = read_by_kernel<T>(in);
    T* const results = written_by_kernel<T>(out);
    start<device::GateSee<T>>(
        {.in = values, .size = size, .plan = plan_fields, .scratch = scratch, .stream = stream},
        in);
    device::GateDecideArguments decide = {.plan = plan_fields,
                                          .stats = stats_fields,
                                          .scratch = scratch,
                                          .size = size,
                                          .stream = stream,
                                          .largest = kLargest<T>,
                                          .mantissa_bits = kMantissaBits<T>,
                                          .crossovers = {}};
    std::copy_n(kFormatCrossovers, kNumFormatCrossovers, decide.crossovers);
    start<device::GateDecide>(decide, in);
    start<device::GateApply<T>>({.in = values, .out = results, .size = size, .scratch = scratch},
                                in);
    start<device::GateCompare<T>>({.out = results,
                                   .size = size,
                                   .plan = plan_fields,
                                   .stats = stats_fields,
                                   .scratch = scratch},
                                  in);
  });
  ++num_passes;
}

}  // namespace slimgrad::torch_ops
