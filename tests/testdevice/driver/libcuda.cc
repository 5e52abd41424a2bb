// A CUDA driver for tests: launches run the kernels of src/device on the host. It checks what a
// driver would (names, the grid, the stream) and fails where the environment variable FAKE_CUDA
// says: "no image", "only ptx", "no kernel", "launch fails", "capturing". FAKE_CUDA_LOG names a
// file that gets a line for every call.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "device.h"
#include "device/host_kernels.h"
#include "memory.h"

namespace {

enum : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kNoImage = 200,
  kUnsupportedPtx = 222,
  kNotFound = 500,
  kLaunchFailed = 719
};

thread_local void* context = nullptr;

bool fails_by(std::string_view way) {
  const char* const asked = std::getenv("FAKE_CUDA");
  return asked != nullptr && way == asked;
}

template <typename... Args>
int logged(int result, const char* format, Args... args) {
  const char* const path = std::getenv("FAKE_CUDA_LOG");
  if (path == nullptr) return result;
  std::FILE* const file = std::fopen(path, "a");
  std::fprintf(file, format, args...);
  std::fprintf(file, " -> %d\n", result);
  std::fclose(file);
  return result;
}

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*, void**,
                      unsigned) {
  *library = const_cast<void*>(code);
  const bool is_refused =
      fails_by("no image") ||
      (fails_by("only ptx") && std::string_view(static_cast<const char*>(code)) != "ptx");
  return logged(is_refused ? kUnsupportedPtx : kSuccess, "load %s", static_cast<const char*>(code));
}

int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  const auto* const found = slimgrad::device::find_host_kernel(name);
  if (found == nullptr || fails_by("no kernel")) return logged(kNotFound, "get %s", name);
  *kernel = const_cast<slimgrad::device::HostKernel*>(found);
  return kSuccess;
}

int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}

int cuStreamIsCapturing(void* stream, int* status) {
  *status = fails_by("capturing") ? 1 : 0;
  return stream == testdevice::kStream ? kSuccess : kInvalidValue;
}

int cuCtxGetCurrent(void** current) {
  *current = context;
  return kSuccess;
}

int cuCtxSetCurrent(void* current) {
  context = current;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** of, int device) {
  static int primary;
  *of = &primary;
  return device == 0 ? kSuccess : kInvalidValue;
}

int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra) {
  const auto& found = *static_cast<const slimgrad::device::HostKernel*>(kernel);
  const bool is_valid = grid_x > 0 && grid_y == 1 && grid_z == 1 && block_x % 32 == 0 &&
                        block_x <= 1024 && block_y == 1 && block_z == 1 && shared_bytes == 0 &&
                        stream == testdevice::kStream && extra == nullptr && context != nullptr;
  const int result = fails_by("launch fails") ? kLaunchFailed : is_valid ? kSuccess : kInvalidValue;
  if (result == kSuccess) {
    const testdevice::Opened opened;
    found.run(grid_x, parameters[0], 0);
  }
  return logged(result, "launch %s %u %u", std::string(found.name).c_str(), grid_x, block_x);
}

int cuMemsetD8Async(unsigned long long memory, unsigned char value, std::size_t num_bytes,
                    void* stream) {
  if (stream != testdevice::kStream) return kInvalidValue;
  const testdevice::Opened opened;
  std::memset(reinterpret_cast<void*>(memory), value, num_bytes);
  return logged(kSuccess, "fill %d %zu", value, num_bytes);
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kUnsupportedPtx ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : result == kNotFound     ? "CUDA_ERROR_NOT_FOUND"
                                    : "CUDA_ERROR_LAUNCH_FAILED";
  return kSuccess;
}

}  // extern "C"
