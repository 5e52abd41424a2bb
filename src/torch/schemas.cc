// The schema of every op, in one place. Kernels are registered beside their code.
#include <torch/library.h>

TORCH_LIBRARY(slimgrad, m) {
  // The statistics of a tensor; the layout of the result is in stats_tensor.h.
  m.def("measure(Tensor x) -> Tensor");
  m.def("_measure_aten(Tensor x) -> Tensor");
}
