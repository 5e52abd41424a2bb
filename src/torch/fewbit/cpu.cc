// The few-bit ops on the CPU: codes, and the gradient times the level of each code or times the
// slope that an invertible activation has at its output.
#include "kernels/dispatch.h"
#include "math/fewbit/inverse_table.h"
#include "torch/elements.h"
#include "torch/fewbit/backend.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// Calls run(range) from several threads for ranges that together cover all values.
template <typename Run>
void for_fewbit_ranges(std::size_t num_values, const Run& run) {
  for_values<fewbit::kBlockValues>(num_values, [&](std::size_t first, std::size_t count) {
    run(FewbitRange{first, count});
  });
}

void pack_codes_cpu(const at::Tensor& dense, const kernels::StepLookup& steps,
                    const at::Tensor& codes) {
  kernels::obey_environment();
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    const auto values = elements<T>(dense);
    const auto words = mutable_elements<std::uint32_t>(codes);
    for_fewbit_ranges(values.size(),
                      [&](FewbitRange range) { pack_codes(values, steps, words, range); });
  });
}

void multiply_levels_cpu(const at::Tensor& grad, const at::Tensor& codes,
                         const kernels::StepLookup& steps, const at::Tensor& result) {
  kernels::obey_environment();
  const at::Tensor plain_codes = codes.contiguous();
  with_element_type(grad.scalar_type(), [&]<typename T>() {
    const auto from = elements<T>(grad);
    const auto to = mutable_elements<T>(result);
    const auto words = elements<std::uint32_t>(plain_codes);
    for_fewbit_ranges(from.size(), [&](FewbitRange range) {
      slimgrad::multiply_levels(from, words, steps, to, range);
    });
  });
}

void multiply_slopes_cpu(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& codes,
                         std::string_view name, const at::Tensor& result) {
  kernels::obey_environment();
  const InverseTable& table = inverse_table(name);
  const at::Tensor plain_codes = codes.contiguous();
  with_element_type(y.scalar_type(), [&]<typename T>() {
    const auto from = elements<T>(grad);
    const auto outputs = elements<T>(y);
    const auto to = mutable_elements<T>(result);
    const auto words = elements<std::uint32_t>(plain_codes);
    for_fewbit_ranges(from.size(), [&](FewbitRange range) {
      slimgrad::multiply_slopes(from, outputs, words, table, to, range);
    });
  });
}

}  // namespace

const FewbitBackend kFewbitOnCpu = {pack_codes_cpu, multiply_levels_cpu, multiply_slopes_cpu};

}  // namespace slimgrad::torch_ops
