// The test device's kernels: those of src/device, run on the host by their names; and the ops by
// which Python talks to the device.
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "counts.h"
#include "device.h"
#include "device/host_kernels.h"
#include "device/kernel_list.h"
#include "memory.h"
#include "repeat.h"
#include "torch/device/cuda_launcher.h"
#include "torch/device/launcher.h"

namespace testdevice {
namespace {

namespace device = slimgrad::device;
namespace torch_ops = slimgrad::torch_ops;

// How many kernels are started before one fails; below 0: none does.
std::atomic<std::int64_t> num_until_failure{-1};

class HostLauncher final : public torch_ops::Launcher {
 public:
  void launch(const char* kernel, std::uint64_t num_blocks, int num_threads, const void* arguments,
              c10::Device) override {
    const device::HostKernel* const found = device::find_host_kernel(kernel);
    TORCH_CHECK(found != nullptr, "testdevice: there is no kernel ", kernel);
    TORCH_CHECK(num_until_failure < 0 || num_until_failure-- > 0, "testdevice: out of order");
    TORCH_CHECK(num_blocks > 0 && num_threads % 32 == 0, "testdevice: bad grid of ", kernel);
    ++counts.kernels;
    const Opened opened;
    found->run(num_blocks, arguments, ++shuffle_);
  }
  void fill(void* memory, std::uint8_t byte, std::size_t num_bytes, c10::Device) override {
    if (num_bytes == 0) return;
    ++counts.kernels;
    const Opened opened;
    std::memset(memory, byte, num_bytes);
  }

 private:
  std::atomic<std::uint32_t> shuffle_{0};  // no order of blocks and threads may matter
};

// As "privateuseone", with the kernels of the host; or as "cuda", with the driver that is found,
// which is to be the fake one.
void start(const std::string& name, bool with_launcher) {
  const auto type = c10::Device(name).type();
  start_device(type);
  if (!with_launcher) return;
  if (type == c10::DeviceType::CUDA) {
    static auto& launcher = *new torch_ops::CudaLauncher({"code", "ptx"}, device::kernel_names());
    torch_ops::use_device_kernels(type, launcher);
  } else {
    static auto& launcher = *new HostLauncher;
    torch_ops::use_device_kernels(type, launcher);
  }
}

std::tuple<std::vector<std::string>, std::vector<std::int64_t>> names_and_numbers(
    const std::map<std::string, std::int64_t>& numbers_by_name) {
  std::vector<std::string> names;
  std::vector<std::int64_t> numbers;
  for (const auto& [name, number] : numbers_by_name) {
    names.push_back(name);
    numbers.push_back(number);
  }
  return {names, numbers};
}

}  // namespace

TORCH_LIBRARY(testdevice, m) {
  m.def("start", start);
  m.def("counts", [] {
    return std::vector<std::int64_t>{counts.kernels, counts.copies_to_host, counts.waits,
                                     counts.fallbacks};
  });
  m.def("fallback_names", [] { return names_and_numbers(fallback_names()); });
  m.def("reset", reset_counts);
  m.def("set_strict", [](bool on) { is_strict = on; });
  m.def("fail_after", [](std::int64_t num_kernels) { num_until_failure = num_kernels; });
  m.def("repeat_ops", repeat_ops);
  m.def("repeated", [] { return names_and_numbers(repeated_calls()); });
  // Reads memory of the device as no program should.
  m.def("peek", [](const at::Tensor& x) {
    return static_cast<std::int64_t>(*static_cast<const std::uint8_t*>(x.const_data_ptr()));
  });
}

}  // namespace testdevice
