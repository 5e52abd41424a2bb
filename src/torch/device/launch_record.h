// A record of the kernels that are launched, with what they move and the time that they take: for
// `python -m slimgrad doctor`, which wants to see every kernel run.
#ifndef SLIMGRAD_TORCH_DEVICE_LAUNCH_RECORD_H_
#define SLIMGRAD_TORCH_DEVICE_LAUNCH_RECORD_H_

#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include "device/block.h"

namespace slimgrad::torch_ops {

// Whether somebody asked for a record; nobody does while a network is trained.
bool records_launches();

// Calls `launch` between two events of the current stream, and notes them.
void record_launch(const char* kernel, const device::Traffic& traffic, c10::Device device,
                   c10::function_ref<void()> launch);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_LAUNCH_RECORD_H_
