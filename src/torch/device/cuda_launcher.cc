#include "torch/device/cuda_launcher.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <limits>
#include <utility>

namespace slimgrad::torch_ops {
namespace {

// What CUDA's own header declares, as far as it is used: an ABI since CUDA 12.0.
using Result = int;  // CUresult
constexpr Result kSuccess = 0;

constexpr const char* kOrAten =
    "; SLIMGRAD_DEVICE_KERNELS=0 in the environment runs slimgrad by ATen's operators instead";

}  // namespace

class CudaLauncher::Driver {
 public:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    TORCH_CHECK(library_ != nullptr, "slimgrad: expected a CUDA driver, got ", dlerror());
    find("cuLibraryLoadData", load_data);
    find("cuLibraryGetKernel", get_kernel);
    find("cuKernelGetFunction", get_function);
    find("cuLaunchKernel", launch);
    find("cuMemsetD8Async", memset);
    find("cuStreamIsCapturing", is_capturing);
    find("cuCtxGetCurrent", get_context);
    find("cuCtxSetCurrent", set_context);
    find("cuDevicePrimaryCtxRetain", retain_context);
    find("cuGetErrorName", get_error_name);
  }

  void check(Result result, const char* what, const char* of = "") const {
    TORCH_CHECK(result == kSuccess, "slimgrad: ", what, of, ": CUDA's driver says ", name(result));
  }
  // A thread has no context before its first call of CUDA's runtime, which torch may spare itself
  // where its allocator has memory left: autograd's threads, for one.
  void ensure_context(c10::Device device) const {
    void* context = nullptr;
    check(get_context(&context), "looking for a context");
    if (context != nullptr) return;
    check(retain_context(&context, device.index()), "taking the device's context");
    check(set_context(context), "setting the context");
  }
  std::string name(Result result) const {
    const char* text = nullptr;
    get_error_name(result, &text);
    return text != nullptr ? text : "error " + std::to_string(result);
  }

  Result (*load_data)(void** library, const void* code, void* jit_options, void** jit_values,
                      unsigned num_jit, void* options, void** values, unsigned num_options);
  Result (*get_kernel)(void** kernel, void* library, const char* name);
  Result (*get_function)(void** function, void* kernel);
  Result (*launch)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra);
  Result (*memset)(unsigned long long memory, unsigned char value, std::size_t num_bytes,
                   void* stream);
  Result (*is_capturing)(void* stream, int* status);
  Result (*get_context)(void** context);
  Result (*set_context)(void* context);
  Result (*retain_context)(void** context, int device);
  Result (*get_error_name)(Result result, const char** name);

 private:
  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    TORCH_CHECK(function != nullptr,
                "slimgrad: expected a CUDA driver of CUDA 12.0 or newer, got one without ", name,
                kOrAten);
  }

  void* library_;  // stays open: kernels live as long as the process
};

CudaLauncher::CudaLauncher(std::vector<const void*> images, std::span<const char* const> names)
    : images_(std::move(images)), names_(names) {}
CudaLauncher::~CudaLauncher() = default;

void CudaLauncher::load(Driver& driver) {
  void* library = nullptr;
  Result result = kSuccess;
  for (const void* image : images_) {
    result = driver.load_data(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (result == kSuccess) break;
  }
  TORCH_CHECK(result == kSuccess,
              "slimgrad: expected a CUDA driver and a GPU that slimgrad's kernels were compiled "
              "for, got ",
              driver.name(result), ": the driver is too old, or the GPU older than sm_70", kOrAten);
  for (const char* name : names_)
    driver.check(driver.get_kernel(&kernels_[name], library, name), "finding the kernel ", name);
  library_ = library;
}

CudaLauncher::Driver& CudaLauncher::driver_for(c10::Device device, void* stream) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(device.index());
  if (index < is_loaded_.size() && is_loaded_[index]) {
    driver_->ensure_context(device);
    return *driver_;
  }
  TORCH_CHECK(!images_.empty(),
              "slimgrad: expected a build with device kernels, got one without: install a wheel, "
              "or build with -DSLIMGRAD_DEVICE=ON where nvcc or clang is",
              kOrAten);
  if (driver_ == nullptr) driver_ = std::make_unique<Driver>();
  driver_->ensure_context(device);
  int status = 0;
  driver_->check(driver_->is_capturing(stream, &status), "looking at the current stream");
  TORCH_CHECK(status == 0,
              "slimgrad: expected device kernels to be loaded before a CUDA graph is captured, got "
              "their first use on ",
              device, ": run the graph's code once before, as torch's documentation asks for");
  if (library_ == nullptr) load(*driver_);
  // The driver loads a kernel's code into the current context when it is first asked for.
  for (const auto& [name, kernel] : kernels_) {
    void* function = nullptr;
    driver_->check(driver_->get_function(&function, kernel), "loading a kernel");
  }
  if (is_loaded_.size() <= index) is_loaded_.resize(index + 1);
  is_loaded_[index] = true;
  return *driver_;
}

namespace {
void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}
}  // namespace

void CudaLauncher::launch(const char* kernel, std::uint64_t num_blocks, int num_threads,
                          const void* arguments, c10::Device device) {
  TORCH_CHECK(num_blocks <= std::numeric_limits<std::int32_t>::max(),
              "slimgrad: expected a tensor that 2^31 - 1 blocks of threads cover, got ", num_blocks,
              " blocks");
  const c10::DeviceGuard guard(device);
  void* const stream = current_stream(device);
  const Driver& driver = driver_for(device, stream);
  const auto found = kernels_.find(kernel);
  TORCH_CHECK(found != kernels_.end(), "slimgrad: there is no device kernel ", kernel);
  void* parameters[] = {const_cast<void*>(arguments)};
  driver.check(
      driver.launch(found->second, static_cast<unsigned>(num_blocks), 1, 1,
                    static_cast<unsigned>(num_threads), 1, 1, 0, stream, parameters, nullptr),
      "starting the kernel ", kernel);
}

void CudaLauncher::fill(void* memory, std::uint8_t byte, std::size_t num_bytes,
                        c10::Device device) {
  if (num_bytes == 0) return;
  const c10::DeviceGuard guard(device);
  void* const stream = current_stream(device);
  const Driver& driver = driver_for(device, stream);
  driver.check(driver.memset(reinterpret_cast<unsigned long long>(memory), byte, num_bytes, stream),
               "filling memory");
}

}  // namespace slimgrad::torch_ops
