// The kernels in this library: their names, and their code if it was built with device code.
#ifndef SLIMGRAD_TORCH_DEVICE_EMBEDDED_H_
#define SLIMGRAD_TORCH_DEVICE_EMBEDDED_H_

#include <span>
#include <vector>

#include "device/kernel_list.h"

namespace slimgrad::device {


inline std::vector<const void*> embedded_images() { return {}; }

}  // namespace slimgrad::device

#endif  // SLIMGRAD_TORCH_DEVICE_EMBEDDED_H_
