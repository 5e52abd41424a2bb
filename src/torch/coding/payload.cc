// The ops encode, decode and inspect: tensors as payloads, on the CPU. How long a payload is
// depends on the values, and the shape of what it holds on its bytes; so what torch.compile needs
// to know of them is in Python (coding.py), where there are sizes that are not known yet.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/tensor_files.h>

#include "torch/checks.h"
#include "torch/coding/encode_options.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/fresh_seed.h"
#include "torch/no_gradient.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// Draws a seed if there is none and one is needed.
EncodeOptions with_seed(EncodeOptions options) {
  if (!options.seed)
    options.seed =
        seed_or_draw(std::optional<std::int64_t>(), options.rounding == Rounding::kStochastic);
  return options;
}

TensorView view_of(const at::Tensor& x) {
  const std::optional<DType> dtype = find_dtype(x.scalar_type());
  check(dtype.has_value(), "encode", "x of type float32, bfloat16, float16, float64 or int8",
        c10::toString(x.scalar_type()));
  TensorView view = {x.const_data_ptr(), *dtype, {}};
  for (const std::int64_t length : x.sizes())
    view.shape.push_back(static_cast<std::uint64_t>(length));
  return view;
}

at::Tensor encode_tensor(const at::Tensor& x, const EncodeOptions& options) {
  const at::Tensor in = x.contiguous();
  PayloadEncoder encoder(view_of(in), with_seed(options));
  encode_blocks(encoder);
  const at::Tensor payload = at::empty({static_cast<std::int64_t>(encoder.finish())},
                                       at::TensorOptions().dtype(at::kByte));
  encoder.write(mutable_elements<std::uint8_t>(payload));
  return payload;
}

// Returns the size of the payload.
std::int64_t encode_tensor_into(const at::Tensor& x, const EncodeOptions& options,
                                const at::Tensor& out) {
  check(out.scalar_type() == at::kByte && out.dim() == 1 && out.is_contiguous(), "encode",
        "out to be a contiguous uint8 tensor of one dimension", c10::toString(out.scalar_type()),
        " with ", out.dim(), " dimensions", out.is_contiguous() ? "" : ", not contiguous");
  at::assert_no_overlap(out, x);
  const at::Tensor in = x.contiguous();
  const std::span<std::uint8_t> room = mutable_elements<std::uint8_t>(out);
  PayloadEncoder encoder(view_of(in), with_seed(options), room);
  encode_blocks(encoder);
  const std::size_t size = encoder.finish();
  check(size <= room.size(), "encode", "room for the payload in out", room.size(), " bytes for ",
        size);
  encoder.write(room.first(size));
  return static_cast<std::int64_t>(size);
}

at::Tensor encode_cpu(const at::Tensor& x, std::string_view mode, std::int64_t bits,
                      std::int64_t exponent_bits, std::int64_t mantissa_bits, double scale,
                      double threshold, double rate, double max_error, std::string_view survivors,
                      std::string_view coder, std::string_view model, std::string_view rounding,
                      std::optional<std::int64_t> seed) {
  EncodeOptions options =
      encode_options(mode, bits, exponent_bits, mantissa_bits, survivors, coder, model, rounding);
  set_values(options, scale, threshold, rate, max_error, seed);
  return encode_tensor(x, options);
}

// The size is a tensor, a scalar: what changes an argument may not return a part of it.
at::Tensor encode_into_cpu(const at::Tensor& x, std::string_view kind, std::int64_t bits,
                           std::int64_t exponent_bits, std::int64_t mantissa_bits, double scale,
                           double threshold, double rate, double max_error,
                           std::string_view survivors, std::string_view coder,
                           std::string_view model, std::string_view rounding,
                           std::optional<std::int64_t> seed, const at::Tensor& out) {
  EncodeOptions options =
      encode_options(kind, bits, exponent_bits, mantissa_bits, survivors, coder, model, rounding);
  set_values(options, scale, threshold, rate, max_error, seed);
  return at::scalar_tensor(encode_tensor_into(x, options, out),
                           at::TensorOptions().dtype(at::kLong));
}

void check_payload(const at::Tensor& payload, const char* op) {
  check(payload.scalar_type() == at::kByte && payload.dim() == 1, op,
        "a payload as a uint8 tensor of one dimension", c10::toString(payload.scalar_type()),
        " with ", payload.dim(), " dimensions");
}

std::vector<std::int64_t> order_reversed(std::int64_t num_dims) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = num_dims - 1; i >= 0; --i) order.push_back(i);
  return order;
}

std::vector<std::int64_t> sizes_of(const PayloadInfo& info) {
  return {info.shape.begin(), info.shape.end()};
}

// The tensor whose contiguous memory has the values in the payload's order: in Fortran order that
// is the transpose.
at::Tensor in_payload_order(const at::Tensor& x, const PayloadInfo& info) {
  return info.fortran_order ? x.permute(order_reversed(x.dim())) : x;
}

void decode_blocks(const PayloadDecoder& decoder, const at::Tensor& out) {
  const std::span<std::uint8_t> to(static_cast<std::uint8_t*>(out.mutable_data_ptr()),
                                   static_cast<std::size_t>(out.nbytes()));
  for_ranges(decoder.num_blocks(), 1,
             [&](std::size_t i, std::size_t end) { decoder.run(i, end, to); });
}

[[noreturn]] void throw_too_large(const PayloadInfo& info, const std::string& room) {
  throw PayloadError(PayloadErrorCode::kTooLarge, "[decode] expected " + room + ", got " +
                                                      std::to_string(info.num_bytes()) + " bytes");
}

void check_limit(const PayloadInfo& info, std::optional<std::int64_t> max_bytes) {
  const std::uint64_t limit = byte_limit(max_bytes);
  if (info.num_bytes() > limit)
    throw_too_large(info, "at most max_bytes=" + std::to_string(limit) + " of values");
}

at::Tensor empty_for(const PayloadInfo& info, at::IntArrayRef sizes) {
  try {
    return at::empty(sizes, at::TensorOptions().dtype(scalar_type_of(info.dtype)));
  } catch (const c10::Error&) {
    throw_too_large(info, "values that fit into memory");
  }
}

at::Tensor decode_cpu(const at::Tensor& payload, std::optional<std::int64_t> max_bytes) {
  check_payload(payload, "decode");
  const at::Tensor bytes = payload.contiguous();
  const PayloadDecoder decoder(elements<std::uint8_t>(bytes));
  const PayloadInfo& info = decoder.info();
  check_limit(info, max_bytes);
  std::vector<std::int64_t> sizes = sizes_of(info);
  if (info.fortran_order) std::reverse(sizes.begin(), sizes.end());
  const at::Tensor out = empty_for(info, sizes);
  decode_blocks(decoder, out);
  return in_payload_order(out, info);
}

void decode_into_cpu(const at::Tensor& payload, const at::Tensor& out,
                     std::optional<std::int64_t> max_bytes) {
  check_payload(payload, "decode");
  at::assert_no_overlap(out, payload);
  const at::Tensor bytes = payload.contiguous();
  const PayloadDecoder decoder(elements<std::uint8_t>(bytes), Verification::kLast);
  const PayloadInfo& info = decoder.info();
  const std::vector<std::int64_t> sizes = sizes_of(info);
  const bool is_alike =
      out.scalar_type() == scalar_type_of(info.dtype) && out.sizes() == at::IntArrayRef(sizes);
  const bool fits = is_alike && in_payload_order(out, info).is_contiguous();
  const bool is_small = info.num_bytes() <= byte_limit(max_bytes);
  if (!fits || !is_small) decoder.verify();  // before it is the caller's fault
  check_limit(info, max_bytes);
  check(is_alike, "decode", "out of the payload's type and shape", c10::toString(out.scalar_type()),
        ' ', out.sizes(), " for ", c10::toString(scalar_type_of(info.dtype)), ' ',
        at::IntArrayRef(sizes));
  check(fits, "decode",
        info.fortran_order ? "out whose transpose is contiguous, as the payload is in Fortran order"
                           : "out to be contiguous",
        "strides of ", out.strides());
  decode_blocks(decoder, in_payload_order(out, info));
  decoder.verify();
}

using Inspected =
    std::tuple<std::string, std::string, std::vector<std::int64_t>, double,
               std::vector<std::int64_t>, std::string, std::vector<double>, std::string>;

// mode, type, shape, scale, (bits, exponent bits, mantissa bits, values a block, blocks, bytes,
// whether the rate was reached, k, of), model, its (shape, scale), the threshold and the rate,
// survivors.
Inspected inspect_cpu(const at::Tensor& payload) {
  const PayloadInfo info = inspect(payload);
  const std::vector<std::int64_t> shape(info.shape.begin(), info.shape.end());
  const std::vector<std::int64_t> numbers = {info.bits,
                                             info.exponent_bits,
                                             info.mantissa_bits,
                                             std::int64_t{1} << info.block_log2,
                                             static_cast<std::int64_t>(info.num_blocks()),
                                             static_cast<std::int64_t>(info.payload_bytes),
                                             info.rate_reached() ? 1 : 0,
                                             info.k,
                                             info.of};
  const std::vector<double> law = {info.model_shape, info.model_scale * info.scale, info.threshold,
                                   info.rate};
  return Inspected(std::string(payload_kind_name(info.kind)), std::string(dtype_name(info.dtype)),
                   shape, info.scale, numbers, std::string(table_model_name(info.model)), law,
                   std::string(survivors_name(info.survivors)));
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("encode", ValueErrors<&encode_cpu>::call);
  m.impl("encode_into", ValueErrors<&encode_into_cpu>::call);
  m.impl("decode", ValueErrors<&decode_cpu>::call);
  m.impl("decode_into", ValueErrors<&decode_into_cpu>::call);
  m.impl("inspect", ValueErrors<&inspect_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* const name : {"encode", "encode_into", "decode", "decode_into"})
    m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor encode(const at::Tensor& x, const EncodeOptions& options) {
  torch_ops::check_values(x, "encode");
  check(options.replaced.empty(), "encode", "no memory to replace, with a tensor", "some");
  return torch_ops::encode_tensor(x.detach().cpu(), options);
}

at::Tensor encode_into(const at::Tensor& x, const EncodeOptions& options, const at::Tensor& out) {
  torch_ops::check_values(x, "encode");
  torch_ops::check_values(out, "encode", "out");
  check(options.replaced.empty(), "encode", "no memory to replace, with a tensor", "some");
  return out.slice(0, 0, torch_ops::encode_tensor_into(x.detach().cpu(), options, out));
}

at::Tensor decode(const at::Tensor& payload, std::uint64_t max_bytes) {
  torch_ops::check_values(payload, "decode", "payload");
  return torch_ops::decode_cpu(payload.cpu(),
                               static_cast<std::int64_t>(std::min(max_bytes, kNoByteLimit)));
}

at::Tensor decode_into(const at::Tensor& payload, const at::Tensor& out) {
  torch_ops::check_values(payload, "decode", "payload");
  torch_ops::check_values(out, "decode", "out");
  torch_ops::decode_into_cpu(payload.cpu(), out, std::nullopt);
  return out;
}

PayloadInfo inspect(const at::Tensor& payload) {
  torch_ops::check_values(payload, "inspect", "payload");
  torch_ops::check_payload(payload, "inspect");
  const at::Tensor bytes = payload.cpu().contiguous();
  return inspect(torch_ops::elements<std::uint8_t>(bytes));
}

}  // namespace slimgrad
