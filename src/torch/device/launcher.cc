#include "torch/device/launcher.h"

#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "device/embedded.h"
#include "device/kernel_list.h"
#include "torch/device/cuda_launcher.h"
#include "torch/device/device_ops.h"

namespace slimgrad::torch_ops {
namespace {

std::array<std::atomic<Launcher*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> launchers;

std::atomic<Launcher*>& launcher_at(c10::DeviceType type) {
  return launchers[static_cast<std::size_t>(type)];
}

bool is_wanted() {
  const char* const value = std::getenv("SLIMGRAD_DEVICE_KERNELS");
  return value == nullptr || std::string_view(value) != "0";
}

void register_device_ops(torch::Library& m) {
  register_measure_on_device(m);
  register_apply_on_device(m);
  register_pack_on_device(m);
  register_gates_on_device(m);
  register_fewbit_on_device(m);
  register_saved_on_device(m);
  register_uniform_on_device(m);
}

// Whether this build has device kernels, and whether they are wanted.
std::tuple<bool, bool> device_kernels() {
  return {!device::embedded_images().empty(), is_wanted()};
}

}  // namespace

void use_device_kernels(c10::DeviceType type, Launcher& launcher) {
  const bool is_new = launcher_at(type).exchange(is_wanted() ? &launcher : nullptr) == nullptr;
  if (!is_wanted() || !is_new) return;
  const c10::DispatchKey key =
      c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(type));
  // Registrations live as long as the process.
  auto* const m = new torch::Library(torch::Library::IMPL, "slimgrad", key, __FILE__, __LINE__);
  register_device_ops(*m);
}

Launcher& launcher_of(c10::Device device) {
  Launcher* const launcher = launcher_at(device.type());
  check(launcher != nullptr, "launch", "a device with kernels of slimgrad", device.str());
  return *launcher;
}

bool has_device_kernels(c10::DeviceType type) { return launcher_at(type) != nullptr; }

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("_device_kernels", device_kernels);
}

namespace {
// Where the library is loaded. The driver is looked for at the first use.
[[maybe_unused]] const bool has_cuda = [] {
  static auto& cuda = *new CudaLauncher(device::embedded_images(), device::kernel_names());
  use_device_kernels(c10::DeviceType::CUDA, cuda);
  return true;
}();
}  // namespace

}  // namespace slimgrad::torch_ops
