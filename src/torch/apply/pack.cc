// The ops pack and unpack.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include <slimgrad/apply.h>

#include "arrays/apply/loop_treatment.h"
#include "arrays/apply/value_table.h"
#include "device/coding.h"
#include "torch/apply/apply.h"
#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/device/launch.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/fresh_seed.h"
#include "torch/no_gradient.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

constexpr const char* kFinite = "finite values, as a packed format has no codes for NaN and Inf";

void check_finite(std::uint64_t num_nonfinite) {
  check(num_nonfinite == 0, "pack", kFinite, num_nonfinite, " that are not");
}

FloatFormat checked_format(std::int64_t exponent_bits, std::int64_t mantissa_bits) {
  return quantizer_of(exponent_bits, mantissa_bits, 1.0, "nearest", "zero").format;
}

void check_packed(const at::Tensor& packed, at::ScalarType dtype) {
  check(packed.scalar_type() == at::kByte && packed.dim() == 1, "unpack",
        "packed bytes as a uint8 tensor of one dimension", c10::toString(packed.scalar_type()),
        " with ", packed.dim(), " dimensions");
  check(is_float_dtype(dtype), "unpack", "dtype to be float32, bfloat16 or float16",
        c10::toString(dtype));
}

// Negative sizes are empty's to refuse.
void check_packed_size(const at::Tensor& packed, const at::Tensor& out, const FloatFormat& format) {
  const auto num_values = static_cast<std::size_t>(out.numel());
  check(static_cast<std::size_t>(packed.numel()) == packed_size(format, num_values), "unpack",
        "ceil(values * bits / 8) packed bytes", packed.numel(), " for ", num_values, " values of ",
        format.bits(), " bits");
}

// A treatment that rounds alone.
Treatment treatment_of(std::int64_t exponent_bits, std::int64_t mantissa_bits, double scale,
                       std::string_view rounding, std::string_view underflow,
                       std::optional<std::int64_t> seed) {
  const Quantizer quantizer =
      quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow);
  return {.quantizer = quantizer, .seed = seed_or_draw(seed, quantizer_draws(quantizer))};
}

// ---- CPU ---------------------------------------------------------------------------------------

at::Tensor pack_cpu(const at::Tensor& x, std::int64_t exponent_bits, std::int64_t mantissa_bits,
                    double scale, std::string_view rounding, std::string_view underflow,
                    std::optional<std::int64_t> given_seed) {
  check_float_dtype(x, "pack");
  const Quantizer quantizer =
      quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow);
  const std::uint64_t seed = seed_or_draw(given_seed, quantizer_draws(quantizer));
  const at::Tensor in = x.contiguous();
  const auto size_of = [&](std::size_t num_values) {
    return packed_size(quantizer.format, num_values);
  };
  const auto num_values = static_cast<std::size_t>(in.numel());
  const at::Tensor packed = at::empty({static_cast<std::int64_t>(size_of(num_values))},
                                      at::TensorOptions().dtype(at::kByte));
  const std::span<std::uint8_t> to = mutable_elements<std::uint8_t>(packed);
  std::atomic<std::uint64_t> num_nonfinite = 0;
  with_element_type(in.scalar_type(), [&]<typename T>() {
    const std::span<const T> from = elements<T>(in);
    pack(std::span<const T>(), {}, quantizer, 0);  // checks the arguments of an empty tensor, too
    for_pieces(num_values, [&](std::size_t first, std::size_t count) {
      num_nonfinite += pack(from.subspan(first, count), to.subspan(size_of(first), size_of(count)),
                            quantizer, seed, first)
                           .nonfinite;
    });
  });
  check_finite(num_nonfinite);
  return packed;
}

at::Tensor unpack_cpu(const at::Tensor& packed, at::IntArrayRef size, std::int64_t exponent_bits,
                      std::int64_t mantissa_bits, double scale, at::ScalarType dtype) {
  check_packed(packed, dtype);
  const FloatFormat format = checked_format(exponent_bits, mantissa_bits);
  const at::Tensor out = at::empty(size, packed.options().dtype(dtype));
  check_packed_size(packed, out, format);
  const at::Tensor bytes = packed.contiguous();
  const std::span<const std::uint8_t> from = elements<std::uint8_t>(bytes);
  with_element_type(dtype, [&]<typename T>() {
    const std::span<T> to = mutable_elements<T>(out);
    unpack({}, std::span<T>(), format, scale);
    for_pieces(to.size(), [&](std::size_t first, std::size_t count) {
      unpack(from.subspan(packed_size(format, first), packed_size(format, count)),
             to.subspan(first, count), format, scale);
    });
  });
  return out;
}

// ---- devices with kernels ----------------------------------------------------------------------

// One kernel, a fill of memory, and torch's assertion, which the device makes: where values are not
// finite it stops the device's program, later, since the host does not wait.
at::Tensor pack_device(const at::Tensor& x, std::int64_t exponent_bits, std::int64_t mantissa_bits,
                       double scale, std::string_view rounding, std::string_view underflow,
                       std::optional<std::int64_t> seed) {
  check_float_dtype(x, "pack");
  const Treatment treatment =
      treatment_of(exponent_bits, mantissa_bits, scale, rounding, underflow, seed);
  const FloatFormat& format = treatment.quantizer->format;
  const at::Tensor in = x.contiguous();
  const auto size = static_cast<std::size_t>(in.numel());
  const at::Tensor packed = at::empty({static_cast<std::int64_t>(packed_size(format, size))},
                                      x.options().dtype(at::kByte));
  const at::Tensor all_finite = filled(1, at::kInt, 1, x);
  with_element_type(x.scalar_type(), [&]<typename T>() {
    start<device::PackValues<T>>({.in = read_by_kernel<T>(in),
                                  .packed = written_by_kernel<std::uint8_t>(packed),
                                  .size = size,
                                  .all_finite = written_by_kernel<std::uint32_t>(all_finite),
                                  .bits = static_cast<std::uint32_t>(format.bits()),
                                  .treatment = loop_treatment<T>("pack", treatment)},
                                 x);
  });
  at::_assert_async(all_finite,
                    "[pack] expected " + std::string(kFinite) + ", got some that are not");
  return packed;
}

at::Tensor unpack_device(const at::Tensor& packed, at::IntArrayRef size, std::int64_t exponent_bits,
                         std::int64_t mantissa_bits, double scale, at::ScalarType dtype) {
  check_packed(packed, dtype);
  const FloatFormat format = checked_format(exponent_bits, mantissa_bits);
  const at::Tensor out = at::empty(size, packed.options().dtype(dtype));
  check_packed_size(packed, out, format);
  const at::Tensor bytes = packed.contiguous();
  with_element_type(dtype, [&]<typename T>() {
    const std::array<T, 256> table = float_value_table<T>(format, checked_scale("unpack", scale));
    device::DecodeArguments<T> arguments = {.packed = read_by_kernel<std::uint8_t>(bytes),
                                            .out = written_by_kernel<T>(out),
                                            .size = static_cast<std::uint64_t>(out.numel()),
                                            .bits = static_cast<std::uint32_t>(format.bits()),
                                            .table = {}};
    std::ranges::copy(table, arguments.table);
    start<device::UnpackValues<T>>(arguments, packed);
  });
  return out;
}

// ---- any device --------------------------------------------------------------------------------

at::Tensor pack_aten(const at::Tensor& x, std::int64_t exponent_bits, std::int64_t mantissa_bits,
                     double scale, std::string_view rounding, std::string_view underflow,
                     std::optional<std::int64_t> seed) {
  const Treatment treatment =
      treatment_of(exponent_bits, mantissa_bits, scale, rounding, underflow, seed);
  const at::Tensor codes = encode_aten("pack", treatment, x).reshape({-1, 1});
  check_finite(static_cast<std::uint64_t>((~x.isfinite()).sum().item<std::int64_t>()));
  const int bits = treatment.quantizer->format.bits();
  const at::Tensor shifts = at::arange(bits, codes.options());
  const at::Tensor one_by_one = (codes.bitwise_right_shift(shifts) & 1).reshape(-1);
  const std::int64_t padding = (8 - one_by_one.numel() % 8) % 8;
  const at::Tensor bytes = at::constant_pad_nd(one_by_one, {0, padding}).view({-1, 8});
  return bytes.bitwise_left_shift(at::arange(8, codes.options())).sum(1).to(at::kByte);
}

at::Tensor unpack_aten(const at::Tensor& packed, at::IntArrayRef size, std::int64_t exponent_bits,
                       std::int64_t mantissa_bits, double scale, at::ScalarType dtype) {
  check_packed(packed, dtype);
  const FloatFormat format = checked_format(exponent_bits, mantissa_bits);
  const at::Tensor out = at::empty(size, packed.options().dtype(dtype));
  check_packed_size(packed, out, format);
  at::Tensor table = at::empty({256}, at::TensorOptions().dtype(dtype));
  with_element_type(dtype, [&]<typename T>() {
    std::ranges::copy(float_value_table<T>(format, checked_scale("unpack", scale)),
                      mutable_elements<T>(table).begin());
  });
  table = table.to(packed.device());
  const at::TensorOptions integers = packed.options().dtype(at::kLong);
  const at::Tensor ones = packed.to(at::kLong).reshape({-1, 1});
  const at::Tensor one_by_one = (ones.bitwise_right_shift(at::arange(8, integers)) & 1).reshape(-1);
  const at::Tensor codes = one_by_one.slice(0, 0, out.numel() * format.bits())
                               .view({-1, format.bits()})
                               .bitwise_left_shift(at::arange(format.bits(), integers))
                               .sum(1);
  return table.index_select(0, codes).view(size);
}

// ---- shapes ------------------------------------------------------------------------------------

at::Tensor pack_meta(const at::Tensor& x, std::int64_t exponent_bits, std::int64_t mantissa_bits,
                     double scale, std::string_view rounding, std::string_view underflow,
                     std::optional<c10::SymInt>) {
  check_float_dtype(x, "pack");
  const Quantizer quantizer =
      quantizer_of(exponent_bits, mantissa_bits, scale, rounding, underflow);
  const c10::SymInt num_bytes = (x.sym_numel() * quantizer.format.bits() + 7) / 8;
  return at::empty_symint({num_bytes}, x.options().dtype(at::kByte));
}

at::Tensor unpack_meta(const at::Tensor& packed, c10::SymIntArrayRef size,
                       std::int64_t exponent_bits, std::int64_t mantissa_bits, double,
                       at::ScalarType dtype) {
  check_packed(packed, dtype);
  checked_format(exponent_bits, mantissa_bits);
  return at::empty_symint(size, packed.options().dtype(dtype));
}

}  // namespace

void register_pack_on_device(torch::Library& m) {
  m.impl("pack", ValueErrors<&pack_device>::call);
  m.impl("unpack", ValueErrors<&unpack_device>::call);
}

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("pack", ValueErrors<&pack_cpu>::call);
  m.impl("unpack", ValueErrors<&unpack_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("pack", ValueErrors<&pack_aten>::call);
  m.impl("unpack", ValueErrors<&unpack_aten>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("pack", ValueErrors<&pack_meta>::call);
  m.impl("unpack", ValueErrors<&unpack_meta>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  m.impl("pack", no_gradient());
  m.impl("unpack", no_gradient());
}

}  // namespace slimgrad::torch_ops
