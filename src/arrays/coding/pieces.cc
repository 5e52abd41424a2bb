#include "arrays/coding/pieces.h"

#include <cstring>
#include <sstream>
#include <string>

#include "arrays/coding/checksum.h"
#include "arrays/coding/symbol_block_layout.h"
#include "base/check.h"
#include "formats/open_levels.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

bool is_exact(const PayloadInfo& info) {
  return info.kind == PayloadKind::kRaw || info.kind == PayloadKind::kLossless ||
         (info.kind == PayloadKind::kPruned && info.survivors == Survivors::kExact);
}

bool has_format(const PayloadInfo& info) {
  return info.kind == PayloadKind::kFloat ||
         (info.kind == PayloadKind::kPruned && info.survivors == Survivors::kFloat);
}

bool is_as_agreed(const PayloadInfo& info, const ExpectedPiece& expected) {
  if (expected.kind == PayloadKind::kRaw) return info.kind == PayloadKind::kRaw;
  if (is_exact(info)) return true;
  if (info.kind != expected.kind) return false;
  if (info.kind == PayloadKind::kUniform)
    return info.bits == expected.bits && info.rate == expected.rate;
  if (info.kind == PayloadKind::kTopk)
    return info.bits == expected.bits && info.k == expected.k && info.of == expected.of;
  return !has_format(info) || (info.exponent_bits == expected.exponent_bits &&
                               info.mantissa_bits == expected.mantissa_bits);
}

// Of a payload, or of what was agreed on.
template <typename Settings>
void describe(std::ostream& text, const Settings& settings) {
  text << payload_kind_name(settings.kind);
  switch (settings.kind) {
    case PayloadKind::kUniform:
      if (settings.bits == kOpenBits)
        text << " rate " << settings.rate;
      else
        text << ' ' << settings.bits << " bits";
      break;
    case PayloadKind::kFloat:
      text << " 1-" << settings.exponent_bits << '-' << settings.mantissa_bits;
      break;
    case PayloadKind::kTopk:
      text << ' ' << settings.k << " of " << settings.of << ", " << settings.bits << " bits";
      break;
    default:
      break;
  }
}

[[noreturn]] void refuse(const std::string& text) {
  throw PayloadError(PayloadErrorCode::kBadHeader, "[decode_pieces] " + text);
}

}  // namespace

std::size_t store_raw(const TensorView& tensor, std::span<std::uint8_t> out) {
  PayloadInfo info;
  info.kind = PayloadKind::kRaw;
  info.dtype = tensor.dtype;
  info.shape = tensor.shape;
  const std::vector<std::uint8_t> header = write_payload_header(info);
  const auto num_bytes = static_cast<std::size_t>(info.num_bytes());
  const std::size_t data_bytes = header.size() + num_bytes;
  check(out.size() >= data_bytes + kChecksumBytes, "encode_pieces", "room for the values",
        out.size(), " bytes for ", data_bytes + kChecksumBytes);
  std::memcpy(out.data(), header.data(), header.size());
  if (num_bytes > 0) std::memcpy(out.data() + header.size(), tensor.data, num_bytes);
  const std::uint64_t sum = checksum(out.first(data_bytes));
  std::memcpy(out.data() + data_bytes, &sum, kChecksumBytes);
  return data_bytes + kChecksumBytes;
}

std::uint64_t piece_bound(const TensorView& tensor) {
  const std::uint64_t bound = encode_bound(tensor);
  return bound + bound / 60;  // so that no block needs memory of its own
}

void write_piece_table(std::span<const std::size_t> sizes, std::uint8_t* out) {
  store_u32(out, sizes.size());
  for (const std::size_t size : sizes) store_u32(out += 4, size);
}

std::vector<std::span<const std::uint8_t>> read_piece_table(std::span<const std::uint8_t> bytes,
                                                            std::size_t num_expected) {
  if (bytes.size() < piece_table_bytes(num_expected))
    refuse("expected " + std::to_string(num_expected) + " pieces, got " +
           std::to_string(bytes.size()) + " bytes, too few to list them");
  if (load_u32(bytes.data()) != num_expected)
    refuse("expected " + std::to_string(num_expected) + " pieces, got " +
           std::to_string(load_u32(bytes.data())));
  std::vector<std::span<const std::uint8_t>> payloads;
  payloads.reserve(num_expected);
  std::span<const std::uint8_t> rest = bytes.subspan(piece_table_bytes(num_expected));
  for (std::size_t i = 0; i < num_expected; ++i) {
    const std::size_t size = load_u32(bytes.data() + 4 + 4 * i);
    if (size > rest.size())
      refuse("piece " + std::to_string(i) + ": expected at most " + std::to_string(rest.size()) +
             " bytes, got " + std::to_string(size));
    payloads.push_back(rest.first(size));
    rest = rest.subspan(size);
  }
  if (!rest.empty())
    refuse("expected nothing behind the last piece, got " + std::to_string(rest.size()) + " bytes");
  return payloads;
}

void check_piece(const PayloadInfo& info, const ExpectedPiece& expected, std::size_t index) {
  const bool alike = info.dtype == expected.dtype && info.shape.size() == 1 &&
                     info.shape[0] == expected.num_values;
  if (alike && is_as_agreed(info, expected)) return;
  std::ostringstream text;
  text << "piece " << index << ": expected ";
  describe(text, expected);
  text << " of " << dtype_name(expected.dtype) << " [" << expected.num_values << "], got ";
  describe(text, info);
  text << " of " << dtype_name(info.dtype) << " [";
  for (std::size_t i = 0; i < info.shape.size(); ++i) text << (i > 0 ? ", " : "") << info.shape[i];
  text << "]";
  refuse(text.str());
}

}  // namespace slimgrad
