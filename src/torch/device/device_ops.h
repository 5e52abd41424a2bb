// The ops that have device kernels, room by room, for the dispatch key of `m`: the functions are
// beside those of the CPU (torch/measure/device.cc, torch/fewbit/device.cc, ...).
#ifndef SLIMGRAD_TORCH_DEVICE_DEVICE_OPS_H_
#define SLIMGRAD_TORCH_DEVICE_DEVICE_OPS_H_

#include <torch/library.h>

namespace slimgrad::torch_ops {

void register_measure_on_device(torch::Library& m);
void register_apply_on_device(torch::Library& m);
void register_pack_on_device(torch::Library& m);
void register_gates_on_device(torch::Library& m);
void register_fewbit_on_device(torch::Library& m);
void register_saved_on_device(torch::Library& m);
void register_uniform_on_device(torch::Library& m);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_DEVICE_DEVICE_OPS_H_
