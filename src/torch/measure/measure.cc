// measure: the statistics of a tensor; and the record of a run, which holds them.
#include <slimgrad/measure.h>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <slimgrad/tensor_stats.h>
#include <slimgrad/tensors.h>

#include "arrays/measure/run_record.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/find_op.h"
#include "torch/measure/stats_tensor.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// Statistics do not ask for an order, so that a tensor that fills its storage without gaps is read
// as it lies there: transposed and channels-last tensors need no copy. (The order still decides
// which values a sampled histogram sees.)
TensorStats measure_tensor(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  TensorStats stats;
  with_element_type(x.scalar_type(), [&]<typename T>() {
    Measurement measurement(elements<T>(dense));
    for_ranges(measurement.num_chunks(), 1,
               [&](std::size_t first, std::size_t last) { measurement.run(first, last); });
    stats = measurement.finish();
  });
  return stats;
}

at::Tensor measure_cpu(const at::Tensor& x) { return stats_to_tensor(measure_tensor(x)); }

// The result is on x's device.
at::Tensor measure_meta(const at::Tensor& x) {
  check_float_dtype(x, "measure");
  return at::empty_symint({kStatsTensorSize}, x.options().dtype(at::kDouble));
}

at::Tensor histogram_edges() {
  at::Tensor edges = at::empty({LogHistogram::kNumBins + 1}, at::kDouble);
  for (int bin = 0; bin <= LogHistogram::kNumBins; ++bin)
    edges.mutable_data_ptr<double>()[bin] = LogHistogram::lower_edge(bin);
  return edges;
}

using Texts = std::vector<std::string>;
std::tuple<std::int64_t, Texts, Texts, Texts, c10::List<bool>> record_fields_op() {
  Texts kinds, names, types;
  c10::List<bool> required;
  for (const RecordField& field : record_fields()) {
    kinds.push_back(field.kind);
    names.push_back(field.name);
    types.push_back(field.type);
    required.push_back(field.is_required);
  }
  return {kRecordSchema, kinds, names, types, required};
}

std::string record_line_op(std::string_view fields) { return record_line(fields); }

std::string histogram_fields_op(const at::Tensor& stats) {
  return histogram_fields(stats_from_tensor(stats, "histogram_fields"));
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("stats_fields", stats_fields);
  m.impl("histogram_edges", histogram_edges);
  m.impl("record_fields", record_fields_op);
  m.impl("record_line", ValueErrors<&record_line_op>::call);
  m.impl("histogram_fields", ValueErrors<&histogram_fields_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CPU, m) { m.impl("measure", ValueErrors<&measure_cpu>::call); }
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("measure", ValueErrors<&measure_meta>::call);
  m.impl("_measure_aten", ValueErrors<&measure_meta>::call);
}
// Statistics have no gradient: they look at a tensor from outside the graph.
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("measure", torch::CppFunction::makeFallthrough());
  m.impl("_measure_aten", torch::CppFunction::makeFallthrough());
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

TensorStats measure(const at::Tensor& x) {
  if (x.is_cpu()) return torch_ops::measure_tensor(x.detach());
  static const auto op = torch_ops::find_op<at::Tensor(const at::Tensor&)>("slimgrad::measure");
  return torch_ops::stats_from_tensor(op.call(x), "measure");
}

}  // namespace slimgrad
