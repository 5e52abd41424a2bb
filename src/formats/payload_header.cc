#include "formats/payload_header.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include <slimgrad/error.h>

#include "formats/header_bytes.h"
#include "formats/model_parameter.h"
#include "formats/open_levels.h"
#include "formats/topk.h"

namespace slimgrad {
namespace {

using namespace header_bytes;

bool has_16_or_32_bits(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

void write_float_codes(const PayloadInfo& info, Writer& out) {
  out.byte(static_cast<std::uint64_t>(info.exponent_bits));
  out.byte(static_cast<std::uint64_t>(info.mantissa_bits));
  out.number(info.scale);
}

float read_scale(Reader& in) {
  const float scale = in.number();
  if (!std::isnormal(scale) || scale < 0) bad_header("a scale that is not positive and normal");
  return scale;
}

void read_float_codes(Reader& in, PayloadInfo& info) {
  info.exponent_bits = in.within(1, 7, "exponent bits");
  info.mantissa_bits = in.within(0, std::min(6, 7 - info.exponent_bits), "mantissa bits");
  info.scale = read_scale(in);
}

void write_parameters(const PayloadInfo& info, Writer& out) {
  switch (info.kind) {
    case PayloadKind::kRaw:
    case PayloadKind::kLossless:
      return;
    case PayloadKind::kUniform:
      out.byte(static_cast<std::uint64_t>(info.bits));
      out.number(info.scale);
      out.byte(static_cast<std::uint64_t>(info.model));
      if (info.model != TableModel::kCounted) {
        out.fixed(encode_parameter(info.model_shape), 2);
        out.fixed(encode_parameter(info.model_scale), 2);
      }
      if (info.bits == kOpenBits) out.number(info.rate);
      return;
    case PayloadKind::kFloat:
      return write_float_codes(info, out);
    case PayloadKind::kPruned:
      out.byte(static_cast<std::uint64_t>(info.survivors));
      out.number(info.threshold);
      if (info.survivors == Survivors::kFloat) write_float_codes(info, out);
      return;
    case PayloadKind::kTopk:
      out.fixed(static_cast<std::uint64_t>(info.k), 2);
      out.fixed(static_cast<std::uint64_t>(info.of), 2);
      out.byte(static_cast<std::uint64_t>(info.bits));
  }
}

void read_uniform(Reader& in, PayloadInfo& info) {
  info.bits = in.within(kOpenBits, 8, "bits");
  if (info.bits == 1) bad_header("1 bit, expected 0 or 2 to 8");
  info.scale = read_scale(in);
  info.model = in.choice(TableModel::kGennorm, "model");
  if (info.model != TableModel::kCounted) {
    info.model_shape = decode_parameter(static_cast<std::uint16_t>(in.fixed(2)));
    info.model_scale = decode_parameter(static_cast<std::uint16_t>(in.fixed(2)));
  }
  if (info.bits != kOpenBits) return;
  info.rate = in.number();
  if (!(info.rate >= 0 && info.rate <= kLargestRate) || std::signbit(info.rate))
    bad_header("a rate that is not between 0 and 16");
}

void read_pruned(Reader& in, PayloadInfo& info) {
  info.survivors = in.choice(Survivors::kFloat, "form of survivors");
  if (info.survivors == Survivors::kBFloat16 && info.dtype != DType::kFloat32)
    bad_header("bfloat16 survivors of another type than float32");
  info.threshold = in.number();
  if (!std::isfinite(info.threshold) || std::signbit(info.threshold))
    bad_header("a threshold that is negative or not finite");
  if (info.survivors == Survivors::kFloat) read_float_codes(in, info);
}

void read_topk(Reader& in, PayloadInfo& info) {
  info.k = static_cast<int>(in.fixed(2));
  info.of = static_cast<int>(in.fixed(2));
  info.bits = in.byte();
  if (!is_topk_rule(info.k, info.of, info.bits))
    bad_header("the " + std::to_string(info.k) + " largest of " + std::to_string(info.of) +
               " values at " + std::to_string(info.bits) + " bits");
}

void read_parameters(Reader& in, PayloadInfo& info) {
  switch (info.kind) {
    case PayloadKind::kRaw:
    case PayloadKind::kLossless:
      return;
    case PayloadKind::kUniform:
      return read_uniform(in, info);
    case PayloadKind::kFloat:
      return read_float_codes(in, info);
    case PayloadKind::kPruned:
      return read_pruned(in, info);
    case PayloadKind::kTopk:
      return read_topk(in, info);
  }
}

void read_shape(Reader& in, PayloadInfo& info) {
  const std::uint8_t dims = in.byte();
  const std::size_t num_dims = dims & ~kFortranFlag;
  info.fortran_order = (dims & kFortranFlag) != 0;
  if (num_dims > kMaxShapeLengths)
    bad_header(std::to_string(num_dims) + " dimensions, expected 0 to 32");
  if (info.fortran_order && num_dims < 2)
    bad_header("Fortran order with fewer than two dimensions");
  for (std::size_t i = 0; i < num_dims; ++i) info.shape.push_back(in.varint());
  // A tensor with a zero in its shape is empty, however long its other sides are.
  if (std::ranges::find(info.shape, 0u) != info.shape.end()) return;
  std::uint64_t bytes = bytes_of(info.dtype);
  for (const std::uint64_t length : info.shape)
    if (__builtin_mul_overflow(bytes, length, &bytes) || bytes > kMaxTensorBytes)
      bad_header("a shape of more than 2^60 bytes");
}

void check_body(std::uint64_t expected, std::size_t there) {
  if (there < expected)
    fail(PayloadErrorCode::kTruncated, "the header announces " + std::to_string(expected) +
                                           " bytes of data, the payload has " +
                                           std::to_string(there));
  if (there > expected)
    fail(PayloadErrorCode::kTrailingBytes,
         std::to_string(there - expected) + " bytes more than the header announces");
}

void read_index(Reader& in, PayloadInfo& info) {
  const std::uint64_t num_blocks = info.num_blocks();
  if (num_blocks > in.left() / 4)
    fail(PayloadErrorCode::kTruncated, "a shape of " + std::to_string(num_blocks) +
                                           " blocks, more than the payload has room for");
  std::uint64_t sum = 0;
  info.block_bytes.resize(num_blocks);
  for (std::uint32_t& size : info.block_bytes) {
    size = static_cast<std::uint32_t>(in.fixed(4));
    sum += size;
  }
  check_body(sum, in.left());
  // A block says at least how it is coded, and of equal values which one: without this a payload
  // could announce values that nothing in it stands for.
  for (const std::uint32_t size : info.block_bytes)
    if (size < kLeastBlockBytes) bad_header("a block of " + std::to_string(size) + " bytes");
}

}  // namespace

std::vector<std::uint8_t> write_payload_header(const PayloadInfo& info) {
  Writer out;
  for (const std::uint8_t byte : kPayloadMagic) out.byte(byte);
  out.byte(kPayloadVersion);
  out.byte(static_cast<std::uint64_t>(info.kind));
  out.byte(static_cast<std::uint64_t>(info.dtype));
  out.byte(info.shape.size() | (info.fortran_order ? kFortranFlag : 0));
  for (const std::uint64_t length : info.shape) out.varint(length);
  if (info.kind == PayloadKind::kRaw) return out.take();
  write_parameters(info, out);
  out.byte(static_cast<std::uint64_t>(info.block_log2));
  for (const std::uint32_t size : info.block_bytes) out.fixed(size, 4);
  return out.take();
}

void check_payload_start(std::span<const std::uint8_t> payload) {
  if (payload.size() < kMinPayloadBytes)
    fail(PayloadErrorCode::kTooShort, "expected a payload of at least " +
                                          std::to_string(kMinPayloadBytes) + " bytes, got " +
                                          std::to_string(payload.size()));
  if (std::equal(kContainerMagic.begin(), kContainerMagic.end(), payload.begin()))
    fail(PayloadErrorCode::kBadMagic,
         "a container of several tensors, not one payload: slimgrad.load reads it");
  if (!std::equal(kPayloadMagic.begin(), kPayloadMagic.end(), payload.begin()))
    fail(PayloadErrorCode::kBadMagic, "not a slimgrad payload (the magic bytes are missing)");
  if (payload[4] != kPayloadVersion)
    fail(PayloadErrorCode::kBadVersion, "a payload of version " + std::to_string(payload[4]) +
                                            ", this library reads version " +
                                            std::to_string(kPayloadVersion));
}

PayloadInfo parse_payload_header(std::span<const std::uint8_t> payload, std::size_t& header_bytes) {
  check_payload_start(payload);
  const std::size_t data_bytes = payload.size() - kChecksumBytes;
  Reader in(payload.first(data_bytes));
  in.fixed(5);  // checked already
  PayloadInfo info;
  info.payload_bytes = payload.size();
  info.kind = in.choice(PayloadKind::kTopk, "kind");
  info.dtype = in.choice(DType::kInt8, "type");
  if (info.kind > PayloadKind::kLossless && !has_16_or_32_bits(info.dtype))
    bad_header("a lossy payload of type " + std::string(dtype_name(info.dtype)));
  read_shape(in, info);
  if (info.kind == PayloadKind::kRaw) {
    check_body(info.num_bytes(), in.left());
  } else {
    read_parameters(in, info);
    info.block_log2 = in.within(kMinBlockLog2, kMaxBlockLog2, "as the logarithm of block sizes");
    read_index(in, info);
  }
  header_bytes = in.used();
  return info;
}

}  // namespace slimgrad
