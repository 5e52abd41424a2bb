// The code of the kernels for GPUs that this library was built with (cmake/DeviceCode.cmake).
#ifndef SLIMGRAD_DEVICE_EMBEDDED_H_
#define SLIMGRAD_DEVICE_EMBEDDED_H_

#include <vector>

namespace slimgrad::device {

// Images that cuLibraryLoadData() takes, in the order in which they are to be tried: one with
// machine code for several architectures and PTX, for drivers of CUDA 13; one with PTX 7.0, for
// older drivers. Either may be missing, and both are in a build without device code.
std::vector<const void*> embedded_images();

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_EMBEDDED_H_
