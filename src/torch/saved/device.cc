// What backward keeps, by the kernels of src/device.
#include "device/saved.h"

#include "torch/device/launch.h"
#include "torch/saved/ops.h"

namespace slimgrad::torch_ops {
namespace {

// function.template operator()<bits>() for a width of saved values.
template <typename Function>
void with_saved_width(int bits, const Function& function) {
  switch (bits) {
    case 8: return function.template operator()<8>();
    case 4: return function.template operator()<4>();
    default: return function.template operator()<2>();
  }
}

}  // namespace

void pack_saved_on_device(const at::Tensor& dense, const saved::Format& format, std::uint64_t seed,
                          const at::Tensor& words) {
  clear(words.slice(0, words.numel() - 1));  // what counts bad groups
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    with_saved_width(format.bits, [&]<int bits>() {
      start<device::PackSaved<T, bits>>({.in = read_by_kernel<T>(dense),
                                         .words = written_by_kernel<std::uint32_t>(words),
                                         .size = static_cast<std::uint64_t>(dense.numel()),
                                         .seed = seed,
                                         .group = static_cast<std::uint32_t>(format.group),
                                         .is_stochastic = format.is_stochastic},
                                        dense);
    });
  });
}

void unpack_saved_on_device(const at::Tensor& words, const saved::Format& format,
                            const at::Tensor& result) {
  const at::Tensor plain = aligned(words);
  with_element_type(result.scalar_type(), [&]<typename T>() {
    with_saved_width(format.bits, [&]<int bits>() {
      start<device::UnpackSaved<T, bits>>({.words = read_by_kernel<std::uint32_t>(plain),
                                           .out = written_by_kernel<T>(result),
                                           .size = static_cast<std::uint64_t>(result.numel()),
                                           .group = static_cast<std::uint32_t>(format.group)},
                                          result);
    });
  });
}

}  // namespace slimgrad::torch_ops
namespace slimgrad::torch_ops {
at::Tensor pack_exact_on_device(const at::Tensor& dense, bool) { TORCH_CHECK(false, "todo"); return dense; }
void unpack_exact_on_device(const at::Tensor&, const at::Tensor&) { TORCH_CHECK(false, "todo"); }
}
