// What a payload's header says: plain data, which inspect() in payload.h reads. docs/format.md has
// the bytes.
#ifndef SLIMGRAD_PAYLOAD_INFO_H_
#define SLIMGRAD_PAYLOAD_INFO_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace slimgrad {

// The numbers of these enumerations are those of the format.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64, kInt8 };
enum class PayloadKind : std::uint8_t { kRaw, kLossless, kUniform, kFloat, kPruned, kTopk };
enum class TableModel : std::uint8_t { kCounted, kNormal, kLaplace, kGennorm };
enum class Survivors : std::uint8_t { kExact, kBFloat16, kFloat };

std::string_view dtype_name(DType dtype);  // "float32", ...
std::string_view payload_kind_name(PayloadKind kind);
std::string_view table_model_name(TableModel model);
std::string_view survivors_name(Survivors survivors);
// Throw InvalidArgument for other names. "raw" is a kind that cannot be asked for.
PayloadKind parse_payload_kind(std::string_view name);
TableModel parse_table_model(std::string_view name);
Survivors parse_survivors(std::string_view name);

constexpr std::size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kInt8:
      return 1;
    default:
      return 2;
  }
}

struct PayloadInfo {
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;  // empty for a scalar
  bool fortran_order = false;        // the first index runs fastest; of two dimensions or more
  PayloadKind kind = PayloadKind::kRaw;
  int block_log2 = 18;  // a block holds 2^block_log2 values; not for kRaw

  // kUniform: a value is an integer of at most half = 2^(bits-1) - 1 times scale; with bits of 0,
  // which rate and max_error of EncodeOptions ask for, any integer of up to 2^20. With a model
  // other than kCounted, which is a generalized normal law, its shape, and its scale in units of
  // `scale`; both are numbers that the header's 16 bits can hold.
  // kFloat, and kPruned with Survivors::kFloat: a value of 1-exponent_bits-mantissa_bits times
  // scale.
  float scale = 1;
  int bits = 8;
  float rate =
      0;  // with bits of 0: bits a value that the payload was to take; 0: the step was given
  TableModel model = TableModel::kCounted;
  double model_shape = 0;
  double model_scale = 0;
  int exponent_bits = 4;
  int mantissa_bits = 3;

  // kPruned.
  Survivors survivors = Survivors::kExact;
  float threshold = 0;  // exact in the dtype

  // kTopk: the k largest of every `of` values are kept, rounded to 2^bits levels, bits from 1 to 4.
  int k = 64, of = 4096;

  // The sizes of the blocks in bytes, in order. Not for kRaw.
  std::vector<std::uint32_t> block_bytes;
  std::uint64_t payload_bytes = 0;

  std::uint64_t num_values() const {
    std::uint64_t product = 1;
    for (const std::uint64_t length : shape) product *= length;
    return product;
  }
  // The bits that the payload takes for a value; 0 for no values.
  double bits_per_value() const {
    const auto count = static_cast<double>(num_values());
    return count > 0 ? 8 * static_cast<double>(payload_bytes) / count : 0;
  }
  // Whether that is the rate that was asked for: within 2 % from 2^18 values on, else within 5 %.
  // It is not for what has no payload of that size: zeros, equal values, few values.
  bool rate_reached() const {
    const double ratio = rate > 0 ? bits_per_value() / rate : 1;
    const double tolerance = num_values() >= std::uint64_t{1} << 18 ? 0.02 : 0.05;
    return ratio >= 1 - tolerance && ratio <= 1 + tolerance;
  }
  std::uint64_t num_bytes() const { return num_values() * bytes_of(dtype); }
  std::uint64_t num_blocks() const {
    if (kind == PayloadKind::kRaw) return 0;
    return (num_values() + (std::uint64_t{1} << block_log2) - 1) >> block_log2;
  }
};

}  // namespace slimgrad

#endif  // SLIMGRAD_PAYLOAD_INFO_H_
