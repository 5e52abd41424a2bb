#include "torch/device/launch_record.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/kernel_list.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

struct Launch {
  const char* kernel;
  device::Traffic traffic;
  c10::Event begin, end;
};

std::atomic<bool> is_recording{false};
std::mutex mutex;
std::vector<Launch>& launches() {
  static auto& all = *new std::vector<Launch>;  // events must not outlive the device's driver
  return all;
}

// Names, bytes read and written, milliseconds.
using Record = std::tuple<std::vector<std::string>, std::vector<std::int64_t>,
                          std::vector<std::int64_t>, std::vector<double>>;

// Begins a record, or ends it and gives what it holds: then the host waits for the last kernel.
Record record_launches(bool begins) {
  const std::lock_guard lock(mutex);
  is_recording = begins;
  const std::vector<Launch> all = std::exchange(launches(), {});
  Record record;
  if (begins) return record;
  auto& [names, read, written, milliseconds] = record;
  for (const Launch& launch : all) {
    launch.end.synchronize();
    names.emplace_back(launch.kernel);
    read.push_back(static_cast<std::int64_t>(launch.traffic.read));
    written.push_back(static_cast<std::int64_t>(launch.traffic.written));
    milliseconds.push_back(launch.begin.elapsedTime(launch.end));
  }
  return record;
}

// All kernels on `size` values, with `bits` a code and groups of `group` values where a kernel has
// them not in its name: names, threads of a block, blocks, bytes read and written.
using Costs =
    std::tuple<std::vector<std::string>, std::vector<std::int64_t>, std::vector<std::int64_t>,
               std::vector<std::int64_t>, std::vector<std::int64_t>>;

Costs device_kernel_costs(std::int64_t size, std::int64_t bits, std::int64_t group) {
  check(size >= 0 && 1 <= bits && bits <= 8 && group > 0, "device_kernel_costs",
        "a size, 1 to 8 bits and a group", size, ", ", bits, ", ", group);
  Costs costs;
  auto& [names, threads, blocks, read, written] = costs;
  const auto add = [&]<class Kernel>() {
    typename Kernel::Arguments a = {};
    a.size = static_cast<std::uint64_t>(size);
    if constexpr (requires { a.bits; }) a.bits = static_cast<std::uint32_t>(bits);
    if constexpr (requires { a.group; }) a.group = static_cast<std::uint32_t>(group);
    const device::Traffic traffic = Kernel::traffic(a);
    names.emplace_back(device::kKernelName<Kernel>);
    threads.push_back(Kernel::kThreads);
    blocks.push_back(static_cast<std::int64_t>(Kernel::num_blocks(a)));
    read.push_back(static_cast<std::int64_t>(traffic.read));
    written.push_back(static_cast<std::int64_t>(traffic.written));
  };
  using namespace device;
#define SLIMGRAD_ADD(name, ...) add.template operator()<__VA_ARGS__>();
  SLIMGRAD_DEVICE_KERNELS(SLIMGRAD_ADD)
#undef SLIMGRAD_ADD
  return costs;
}

}  // namespace

bool records_launches() { return is_recording; }

void record_launch(const char* kernel, const device::Traffic& traffic, c10::Device device,
                   c10::function_ref<void()> launch) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  Launch recorded = {kernel,
                     traffic,
                     {device.type(), c10::EventFlag::BACKEND_DEFAULT},
                     {device.type(), c10::EventFlag::BACKEND_DEFAULT}};
  recorded.begin.record(stream);
  launch();
  recorded.end.record(stream);
  const std::lock_guard lock(mutex);
  launches().push_back(std::move(recorded));
}

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("_record_launches", record_launches);
  m.impl("_device_kernel_costs", ValueErrors<&device_kernel_costs>::call);
}

}  // namespace slimgrad::torch_ops
