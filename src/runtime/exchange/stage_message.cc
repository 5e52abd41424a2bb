#include "runtime/exchange/stage_message.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include <slimgrad/format_choice.h>
#include <slimgrad/gradient_gate.h>
#include <slimgrad/tensor_files.h>
#include <slimgrad/tensors.h>

#include "arrays/coding/checksum.h"
#include "base/check.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/find_op.h"

namespace slimgrad::exchange {
namespace {

constexpr auto kBodyAt = static_cast<std::int64_t>(kHeaderBytes);

// ---- order in memory

// The dimensions from the slowest to the fastest, if the values fill their memory without gaps;
// else as they are.
std::vector<std::int64_t> memory_order(const at::Tensor& x) {
  std::vector<std::int64_t> dimensions(static_cast<std::size_t>(x.dim()));
  std::iota(dimensions.begin(), dimensions.end(), 0);
  std::vector<std::int64_t> order = dimensions;
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int64_t i) { return x.stride(i); });
  return x.permute(order).is_contiguous() ? order : dimensions;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> places(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return places;
}

// The shape of the values as the body has them.
std::vector<std::int64_t> body_shape(const TensorHeader& tensor) {
  std::vector<std::int64_t> shape;
  for (const std::int64_t i : tensor.order)
    shape.push_back(tensor.shape[static_cast<std::size_t>(i)]);
  return shape;
}

// ---- bodies

std::uint64_t body_checksum(const at::Tensor& body) {
  return checksum(torch_ops::elements<std::uint8_t>(body));
}

// A header without a body, and the values in the order in which they are sent.
struct Started {
  Header header;
  at::Tensor values;
};
Started start(const at::Tensor& tensor, const MessageName& name) {
  check(has_type_code(tensor.scalar_type()) &&
            tensor.dim() <= static_cast<std::int64_t>(kMostDimensions),
        "boundary",
        "a tensor of at most 8 dimensions and of a type of floating-point numbers, integers or "
        "bool",
        type_name(tensor.scalar_type()), " of ", tensor.dim());
  const at::Tensor x = tensor.detach();
  TensorHeader about;
  about.type = x.scalar_type();
  about.shape = x.sizes().vec();
  about.order = memory_order(x);
  about.wants_gradient = name.wants_gradient;
  at::Tensor values = x.permute(about.order).contiguous().cpu();
  return {{.kind = name.kind, .number = name.number, .tensor = std::move(about)},
          std::move(values)};
}

at::Tensor room_for(std::uint64_t num_bytes) {
  return at::empty({kBodyAt + static_cast<std::int64_t>(num_bytes)}, at::kByte);
}

// `bytes` has room for the header, and then the body.
StageMessage finished(Header header, at::Tensor bytes) {
  header.num_bytes = static_cast<std::uint64_t>(bytes.numel() - kBodyAt);
  write_header(header, bytes.mutable_data_ptr<std::uint8_t>());
  return {std::move(header), std::move(bytes)};
}

// With a body that has no checksum of its own.
StageMessage with_body(Header header, const void* body, std::size_t size) {
  at::Tensor bytes = room_for(size);
  if (size > 0) std::memcpy(bytes.mutable_data_ptr<std::uint8_t>() + kBodyAt, body, size);
  header.tensor->body_checksum = body_checksum(bytes.narrow(0, kBodyAt, bytes.numel() - kBodyAt));
  return finished(std::move(header), std::move(bytes));
}

StageMessage with_payload(Header header, const at::Tensor& values, const EncodeOptions& options) {
  const at::Tensor bytes = room_for(values.nbytes() + kPayloadSlack);
  const at::Tensor body =
      encode_into(values, options, bytes.narrow(0, kBodyAt, bytes.numel() - kBodyAt));
  return finished(std::move(header), bytes.narrow(0, 0, kBodyAt + body.numel()));
}

// ---- grids

// Whether all values of the grid are numbers of float32.
bool is_exact(const FloatFormat& format, double scale) {
  return static_cast<double>(static_cast<float>(scale)) == scale &&
         scale * format.smallest() >= std::ldexp(1.0, -126);
}

double epsilon(at::ScalarType type) {
  return std::ldexp(1.0, type == at::kFloat ? -23 : type == at::kHalf ? -10 : -7);
}

at::Tensor unscaled(const at::Tensor& payload_values, const TensorHeader& tensor) {
  try {
    const at::Tensor codes = pack(payload_values, *tensor.format, 1.0).data;
    return PackedTensor{codes, body_shape(tensor), tensor.type, *tensor.format, tensor.scale}
        .unpack();
  } catch (const InvalidArgument& error) {  // NaN and Inf have no codes
    refuse_message(error.what());
  }
}

at::Tensor payload_tensor(const TensorHeader& tensor, const at::Tensor& body) {
  const bool is_scaled = tensor.coding == BodyCoding::kScaled;
  const at::ScalarType type = is_scaled ? at::kFloat : tensor.type;
  const std::vector<std::int64_t> shape = body_shape(tensor);
  const PayloadInfo info = inspect(body);
  if (torch_ops::find_dtype(type) != info.dtype || !std::ranges::equal(info.shape, shape)) {
    std::ostringstream text;
    text << "the payload is " << dtype_name(info.dtype) << " of shape "
         << at::IntArrayRef(reinterpret_cast<const std::int64_t*>(info.shape.data()),
                            info.shape.size())
         << ", the header in front of it says " << type_name(type) << " of shape "
         << at::IntArrayRef(shape);
    refuse_message(text.str());
  }
  const at::Tensor values = decode(body);
  return is_scaled ? unscaled(values, tensor) : values;
}

}  // namespace

void refuse_message(const std::string& text) {
  throw PayloadError(PayloadErrorCode::kBadHeader, text);
}

// ---- tensors to messages -----------------------------------------------------------------------

StageMessage plain_message(const at::Tensor& x, const MessageName& name) {
  const auto [header, values] = start(x, name);
  return with_body(header, values.const_data_ptr(), values.nbytes());
}

StageMessage payload_message(const at::Tensor& x, const MessageName& name,
                             const EncodeOptions& options) {
  auto [header, values] = start(x, name);
  header.tensor->coding = BodyCoding::kPayload;
  return with_payload(std::move(header), values, options);
}

StageMessage grid_message(const at::Tensor& x, const MessageName& name, const FloatFormat& format,
                          double scale, bool packed) {
  EncodeOptions options{.kind = PayloadKind::kFloat, .format = format, .scale = scale};
  if (!packed && x.scalar_type() == at::kFloat && is_exact(format, scale))
    return payload_message(x, name, options);  // values of the grid round to themselves
  auto [header, values] = start(x, name);
  // Rounded to its type, the smallest value of the grid may lie below it, where zero begins.
  const double lowered = scale * (1 - epsilon(x.scalar_type()) / 2);
  const at::Tensor codes = pack(values, format, lowered).data;
  const std::vector<std::int64_t> shape = values.sizes().vec();
  header.tensor->format = format;
  header.tensor->scale = scale;
  if (at::equal(PackedTensor{codes, shape, x.scalar_type(), format, scale}.unpack(), values)) {
    header.tensor->coding = packed ? BodyCoding::kPacked : BodyCoding::kScaled;
    if (packed) return with_body(std::move(header), codes.const_data_ptr(), codes.nbytes());
    // A payload has scales of float32 only, and values of the tensor's type: here 1, float32.
    options.scale = 1;
    StageMessage message =
        with_payload(header, PackedTensor{codes, shape, at::kFloat, format, 1.0}.unpack(), options);
    if (header.tensor->fits(message.header.num_bytes)) return message;
  }
  return payload_message(x, name);
}

StageMessage activation_message(const at::Tensor& x, std::int64_t number,
                                const StageActivations& how, bool packed, bool wants_gradient) {
  using Mode = StageActivations::Mode;
  const MessageName name{MessageKind::kActivation, static_cast<std::uint64_t>(number),
                         wants_gradient};
  if (how.mode == Mode::kPlain || !x.is_floating_point()) return plain_message(x, name);
  const at::Tensor values = x.detach();
  if (how.mode == Mode::kLossless || !values.isfinite().all().item<bool>() ||
      !values.any().item<bool>())
    return payload_message(values, name);
  if (how.mode == Mode::kUniform)
    return payload_message(values, name, {.kind = PayloadKind::kUniform, .bits = how.bits});
  const TensorStats stats = measure(values);
  const SplitOptions split{.rounding = Rounding::kNearest,
                           .underflow = Underflow::kZero,
                           .error = ErrorMeasure::kSquared};
  const FloatFormat format = how.format ? *how.format : best_format(how.bits, stats, split);
  const double scale = gradient_scale(stats, format);
  if (scale < std::numeric_limits<float>::min()) return payload_message(values, name);
  return grid_message(quantize(values, format, scale), name, format, scale, packed);
}

StageMessage gradient_message(const at::Tensor& gradient, std::int64_t number,
                              const StageGradients& how, bool packed) {
  const MessageName name{MessageKind::kGradient, static_cast<std::uint64_t>(number)};
  if (!how.plan.defined())
    return how.lossless ? payload_message(gradient, name) : plain_message(gradient, name);
  using Compress = at::Tensor(const at::Tensor&, at::Tensor, at::Tensor, std::int64_t);
  static const auto compress = torch_ops::find_op<Compress>("slimgrad::compress_gradient");
  const at::Tensor left = torch_ops::invalid_arguments(
      [&] { return compress.call(gradient.detach(), how.plan, how.stats, how.stream); });
  const GateReport report = gate_report(how.plan, how.stats);
  if (!report.compressed || report.nonfinite > 0) return payload_message(left, name);
  if (report.quantizer)
    return grid_message(left, name, report.quantizer->format, report.quantizer->scale, packed);
  return payload_message(left, name, {.kind = PayloadKind::kPruned, .threshold = report.threshold});
}

// ---- messages to tensors -----------------------------------------------------------------------

Header stage_header(const at::Tensor& bytes) {
  try {
    return read_header(bytes.const_data_ptr<std::uint8_t>());
  } catch (const ExchangeError& error) {
    refuse_message(error.what());
  }
}

at::Tensor stage_tensor(const Header& header, const at::Tensor& body) {
  const TensorHeader& tensor = *header.tensor;
  const auto in_place = [&](const at::Tensor& values) {
    return values.permute(inverse(tensor.order));
  };
  if (tensor.coding == BodyCoding::kPayload || tensor.coding == BodyCoding::kScaled)
    return in_place(payload_tensor(tensor, body));
  if (body_checksum(body) != tensor.body_checksum)
    refuse_message("the checksum of the body does not fit");
  const std::vector<std::int64_t> shape = body_shape(tensor);
  if (tensor.coding == BodyCoding::kPacked)
    return in_place(PackedTensor{body, shape, tensor.type, *tensor.format, tensor.scale}.unpack());
  at::Tensor values = at::empty(shape, tensor.type);
  if (values.nbytes() > 0)
    std::memcpy(values.mutable_data_ptr(), body.const_data_ptr(), values.nbytes());
  return in_place(values);
}

}  // namespace slimgrad::exchange
