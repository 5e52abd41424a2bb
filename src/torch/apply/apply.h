// quantize, prune and prune_quantize on tensors, for C++ callers and for the ops.
//
// **Which element is which.** A tensor that fills its memory without gaps or overlaps, however its
// dimensions are ordered (contiguous, transposed, channels-last), is worked on where it lies, and
// element indices, which random numbers depend on, count in the order of memory. Any other tensor
// is gathered first and counts in the order of its dimensions.
#ifndef SLIMGRAD_TORCH_APPLY_APPLY_H_
#define SLIMGRAD_TORCH_APPLY_APPLY_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include <slimgrad/treatment.h>

namespace slimgrad::torch_ops {

// On the CPU, threaded. The fast version. Throws InvalidArgument, in the name of `op`. `out` may be
// `in`. REQUIRES: both without gaps, with equal strides.
ApplyCounts apply_cpu(const char* op, const Treatment& treatment, const at::Tensor& in,
                      const at::Tensor& out);

// The same on a device with kernels (torch/device/launcher.h), by one of them. The same bits.
// `counts`, if wanted, is an int64 tensor there: zeros, at_threshold, nonfinite.
void apply_device(const char* op, const Treatment& treatment, const at::Tensor& in,
                  const at::Tensor& out, at::Tensor* counts = nullptr);

// On any device, in ATen's operators: many passes, same bits. (Where the device's float32 division
// is IEEE's.) `counts`: as above.
at::Tensor apply_aten(const char* op, const Treatment& treatment, const at::Tensor& x,
                      at::Tensor* counts = nullptr);

// The codes of the grid as int64, one an element, for x in the order of its dimensions.
at::Tensor encode_aten(const char* op, const Treatment& treatment, const at::Tensor& x);

// From the arguments of an op. Throws InvalidArgument.
inline Quantizer quantizer_of(std::int64_t exponent_bits, std::int64_t mantissa_bits, double scale,
                              std::string_view rounding, std::string_view underflow) {
  // Numbers beyond int must not come back into range.
  const auto narrow = [](std::int64_t bits) {
    return static_cast<int>(std::clamp<std::int64_t>(bits, -1, 99));
  };
  return {FloatFormat(narrow(exponent_bits), narrow(mantissa_bits)), scale,
          parse_rounding(rounding), parse_underflow(underflow)};
}

// Whether rounding with it draws random numbers.
inline bool quantizer_draws(const Quantizer& quantizer) {
  return quantizer.rounding == Rounding::kStochastic ||
         quantizer.underflow == Underflow::kStochastic;
}

// Whether x is worked on where it lies.
inline bool is_dense(const at::Tensor& x) { return x.is_non_overlapping_and_dense(); }

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_APPLY_APPLY_H_
