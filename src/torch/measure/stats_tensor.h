// TensorStats as a tensor of float64: formats/stats_fields.h.
#ifndef SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_
#define SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/tensor_stats.h>

#include "formats/stats_fields.h"

namespace slimgrad::torch_ops {

// The names of the fields: of those that are whole numbers, which come first, and of the others.
std::tuple<std::vector<std::string>, std::vector<std::string>> stats_fields();

at::Tensor stats_to_tensor(const TensorStats& stats);
// The same into memory for kStatsTensorSize numbers.
void write_stats(const TensorStats& stats, double* fields);

// Throws InvalidArgument, in the name of `op`, unless `tensor` is a float64 tensor of
// kStatsTensorSize elements.
TensorStats stats_from_tensor(const at::Tensor& tensor, const char* op);

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_MEASURE_STATS_TENSOR_H_
