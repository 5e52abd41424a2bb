// CUDA through its driver, which is looked for when it is needed: nothing of CUDA is linked, and
// one library serves torch's builds with and without CUDA.
#ifndef SLIMGRAD_TORCH_DEVICE_CUDA_LAUNCHER_H_
#define SLIMGRAD_TORCH_DEVICE_CUDA_LAUNCHER_H_

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch/device/launcher.h"

namespace slimgrad::torch_ops {

class CudaLauncher final : public Launcher {
 public:
  // images: the kernels as the driver's loader takes them, the best first; the next one is tried
  // where the driver refuses one (PTX, for drivers that are older than the compiler). names: of
  // all kernels. Both must outlive this.
  CudaLauncher(std::vector<const void*> images, std::span<const char* const> names);
  ~CudaLauncher() override;

  // The first call on a device loads all kernels, which takes some milliseconds and is not allowed
  // while a CUDA graph is captured; then it throws, with a sentence that says what to do. It also
  // throws where there is no driver, or one that knows none of the images.
  void launch(const char* kernel, std::uint64_t num_blocks, int num_threads, const void* arguments,
              c10::Device device) override;
  void fill(void* memory, std::uint8_t byte, std::size_t num_bytes, c10::Device device) override;

 private:
  class Driver;
  Driver& driver_for(c10::Device device, void* stream);
  void load(Driver& driver);

  std::vector<const void*> images_;
  std::span<const char* const> names_;
  std::mutex mutex_;
  std::unique_ptr<Driver> driver_;
  void* library_ = nullptr;
  std::unordered_map<std::string_view, void*> kernels_;
  std::vector<bool> is_loaded_;  // by device index
};

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_CUDA_LAUNCHER_H_
