// The few-bit ops by the kernels of src/device, one kernel each. Nothing waits for the device.
#include "device/fewbit.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "math/fewbit/inverse_table.h"
#include "torch/device/launch.h"
#include "torch/fewbit/backend.h"

namespace slimgrad::torch_ops {
namespace {

// function.template operator()<bits>() for a width of codes.
template <typename Function>
void with_fewbit_width(int bits, const Function& function) {
  switch (bits) {
    case 1:
      return function.template operator()<1>();
    case 2:
      return function.template operator()<2>();
    case 3:
      return function.template operator()<3>();
    default:
      return function.template operator()<4>();
  }
}

void pack_codes_device(const at::Tensor& dense, const kernels::StepLookup& steps,
                       const at::Tensor& codes) {
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    with_fewbit_width(steps.bits, [&]<int bits>() {
      start<device::StepCodes<T, bits>>({.in = read_by_kernel<T>(dense),
                                         .codes = written_by_kernel<std::uint32_t>(codes),
                                         .size = static_cast<std::uint64_t>(dense.numel()),
                                         .steps = steps},
                                        dense);
    });
  });
}

void multiply_levels_device(const at::Tensor& grad, const at::Tensor& codes,
                            const kernels::StepLookup& steps, const at::Tensor& result) {
  const at::Tensor words = aligned(codes);
  with_element_type(grad.scalar_type(), [&]<typename T>() {
    with_fewbit_width(steps.bits, [&]<int bits>() {
      start<device::StepBackward<T, bits>>({.gradient = read_by_kernel<T>(grad),
                                            .codes = read_by_kernel<std::uint32_t>(words),
                                            .result = written_by_kernel<T>(result),
                                            .size = static_cast<std::uint64_t>(grad.numel()),
                                            .steps = steps},
                                           grad);
    });
  });
}

// A table in the memory of a device: copied there at its first use, and never freed, since kernels
// that read it may still run when the process ends.
const InverseTable* table_on(c10::Device device, std::string_view name) {
  const InverseTable& table = inverse_table(name);
  static std::mutex& mutex = *new std::mutex;
  static auto& copies = *new std::map<std::pair<const InverseTable*, c10::DeviceIndex>, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& copy = copies[{&table, device.index()}];
  if (!copy.defined()) {
    const at::Tensor here =
        at::empty({static_cast<std::int64_t>(sizeof table)}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(here.mutable_data_ptr(), &table, sizeof table);
    copy = here.to(device);
  }
  return static_cast<const InverseTable*>(copy.const_data_ptr());
}

void multiply_slopes_device(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                            std::string_view name, const at::Tensor& result) {
  const at::Tensor words = aligned(codes);
  const InverseTable* const table = table_on(y.device(), name);
  with_element_type(y.scalar_type(), [&]<typename T>() {
    start<device::InverseBackward<T>>({.gradient = read_by_kernel<T>(grad),
                                       .outputs = read_by_kernel<T>(y),
                                       .codes = read_by_kernel<std::uint32_t>(words),
                                       .result = written_by_kernel<T>(result),
                                       .size = static_cast<std::uint64_t>(y.numel()),
                                       .table = table},
                                      y);
  });
}

}  // namespace

const FewbitBackend kFewbitOnDevice = {pack_codes_device, multiply_levels_device,
                                       multiply_slopes_device};

}  // namespace slimgrad::torch_ops
