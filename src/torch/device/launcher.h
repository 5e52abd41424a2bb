// Starts kernels of src/device by their names, on the current stream of a device.
//
// A launcher is the way to one kind of device: CUDA's driver (cuda_launcher.h), or the test device
// of tests/testdevice. Thread-safe. Nothing here waits for the device.
#ifndef SLIMGRAD_TORCH_DEVICE_LAUNCHER_H_
#define SLIMGRAD_TORCH_DEVICE_LAUNCHER_H_

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace slimgrad::torch_ops {

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Starts blocks [0, num_blocks) of a kernel. `arguments` are read before this returns.
  // REQUIRES: num_blocks > 0.
  virtual void launch(const char* kernel, std::uint64_t num_blocks, int num_threads,
                      const void* arguments, c10::Device device) = 0;
  // Fills memory with a byte.
  virtual void fill(void* memory, std::uint8_t byte, std::size_t num_bytes, c10::Device device) = 0;
};

// From now on ops on tensors of this type of device run device kernels, by `launcher`, which lives
// for ever. CUDA has the driver's from the start. Nothing, if the environment says
// SLIMGRAD_DEVICE_KERNELS=0: then ops are made of ATen's operators, as they are on other devices.
void use_device_kernels(c10::DeviceType type, Launcher& launcher);

// Throws InvalidArgument for a device that has none.
Launcher& launcher_of(c10::Device device);

// Whether ops on this type of device run device kernels.
bool has_device_kernels(c10::DeviceType type);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_LAUNCHER_H_
