// The test device as a backend of torch.
#ifndef SLIMGRAD_TESTS_TESTDEVICE_DEVICE_H_
#define SLIMGRAD_TESTS_TESTDEVICE_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>

namespace testdevice {

extern c10::DeviceType type;  // PrivateUse1, or CUDA
c10::DispatchKey dispatch_key();

// The handle of the current stream.
inline void* const kStream = reinterpret_cast<void*>(0x5151);

// Registers the device with torch. Once, before anything else.
void start_device(c10::DeviceType as);

// The same memory as a CPU tensor. REQUIRES: memory is Opened while it is used.
at::Tensor on_host(const at::Tensor& x);

}  // namespace testdevice

#endif  // SLIMGRAD_TESTS_TESTDEVICE_DEVICE_H_
