#include "torch/coding/uniform_device.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "base/check.h"
#include "device/coding.h"
#include "device/measure.h"
#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/device/launch.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

void check_bits(const char* op, std::int64_t bits) {
  check(2 <= bits && bits <= 8, op, "2 to 8 bits", bits);
}

}  // namespace

std::int64_t uniform_bytes(std::int64_t num_values, std::int64_t bits) {
  return static_cast<std::int64_t>(
      packed_bytes(static_cast<std::size_t>(num_values), static_cast<int>(bits)));
}

UniformCodes pack_uniform_on_device(const at::Tensor& x, std::int64_t bits, bool is_stochastic,
                                    std::uint64_t seed) {
  check_float_dtype(x, "pack_uniform");
  check_bits("pack_uniform", bits);
  UniformCodes codes = {at::empty({uniform_bytes(x.numel(), bits)}, x.options().dtype(at::kByte)),
                        filled(2, at::kInt, 0, x)};
  pack_uniform_into(x.contiguous(), bits, is_stochastic, seed, codes);
  return codes;
}

void pack_uniform_into(const at::Tensor& x, std::int64_t bits, bool is_stochastic,
                       std::uint64_t seed, const UniformCodes& codes) {
  const auto size = static_cast<std::uint64_t>(x.numel());
  auto* const largest = written_by_kernel<std::uint32_t>(codes.largest);
  with_element_type(x.scalar_type(), [&]<typename T>() {
    start<device::MaxMagnitude<T>>({.in = read_by_kernel<T>(x),
                                    .size = size,
                                    .max_bits = largest,
                                    .num_nonfinite = largest + 1},
                                   x);
    start<device::UniformEncode<T>>({.in = read_by_kernel<T>(x),
                                     .packed = written_by_kernel<std::uint8_t>(codes.packed),
                                     .size = size,
                                     .max_bits = largest,
                                     .seed = seed,
                                     .bits = static_cast<std::uint32_t>(bits),
                                     .is_stochastic = is_stochastic},
                                    x);
  });
}

void unpack_uniform_on_device(const UniformCodes& codes, std::int64_t bits, bool is_added,
                              const at::Tensor& out) {
  constexpr const char* kOp = "unpack_uniform";
  check_float_dtype(out, kOp);
  check_bits(kOp, bits);
  check(out.is_contiguous(), kOp, "a contiguous tensor", "strides ", out.strides());
  check(!is_added || out.scalar_type() == at::kFloat, kOp, "sums of float32",
        c10::toString(out.scalar_type()));
  check(codes.packed.scalar_type() == at::kByte && codes.packed.is_contiguous() &&
            codes.packed.numel() == uniform_bytes(out.numel(), bits) &&
            codes.largest.scalar_type() == at::kInt && codes.largest.numel() == 2 &&
            codes.largest.is_contiguous(),
        kOp, "the codes of as many values", codes.packed.numel(), " bytes for ", out.numel());
  with_element_type(out.scalar_type(), [&]<typename T>() {
    const device::UniformDecodeArguments<T> arguments = {
        .packed = read_by_kernel<std::uint8_t>(codes.packed),
        .out = written_by_kernel<T>(out),
        .size = static_cast<std::uint64_t>(out.numel()),
        .max_bits = read_by_kernel<std::uint32_t>(codes.largest),
        .bits = static_cast<std::uint32_t>(bits)};
    if constexpr (std::is_same_v<T, float>)
      if (is_added) return start<device::UniformAdd>(arguments, out);
    start<device::UniformDecode<T>>(arguments, out);
  });
}

namespace {

std::tuple<at::Tensor, at::Tensor> pack_uniform_op(const at::Tensor& x, std::int64_t bits,
                                                   bool is_stochastic, std::int64_t seed) {
  const UniformCodes codes =
      pack_uniform_on_device(x, bits, is_stochastic, static_cast<std::uint64_t>(seed));
  return {codes.packed, codes.largest};
}

void unpack_uniform_op(const at::Tensor& packed, const at::Tensor& largest, std::int64_t bits,
                       bool is_added, at::Tensor& out) {
  unpack_uniform_on_device({packed, largest}, bits, is_added, out);
}

}  // namespace

void register_uniform_on_device(torch::Library& m) {
  m.impl("_pack_uniform", ValueErrors<&pack_uniform_op>::call);
  m.impl("_unpack_uniform_", ValueErrors<&unpack_uniform_op>::call);
}

}  // namespace slimgrad::torch_ops
