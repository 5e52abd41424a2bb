#include "program/npy.h"
#include "program/tensor_bytes.h"

namespace slimgrad::program {
namespace {

DType dtype_of(const std::string& descr, bool bfloat16) {
  if (descr == "<f4") return DType::kFloat32;
  if (descr == "<f2") return DType::kFloat16;
  if (descr == "<f8") return DType::kFloat64;
  if (descr == "|i1") return DType::kInt8;
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") {
    if (bfloat16) return DType::kBFloat16;
    throw NpyError("expected numbers that payloads can hold, got '" + descr +
                   "'; if these are bfloat16, say --bfloat16");
  }
  throw NpyError("expected little-endian float16, float32, float64 or int8, got '" + descr + "'");
}

std::string_view descr_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat16:
      return "<f2";
    case DType::kFloat64:
      return "<f8";
    case DType::kInt8:
      return "|i1";
    case DType::kBFloat16:
      break;
  }
  return "<u2";
}

}  // namespace

NamedTensor parse_npy(std::span<const std::uint8_t> file, bool bfloat16) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<std::size_t>(file.size(), kMaxNpyHeaderBytes));
  const NpyHeader header = parse_npy_header(start);
  const DType dtype = dtype_of(header.descr, bfloat16);
  const std::span<const std::uint8_t> values = file.subspan(header.data_offset);
  std::uint64_t num_bytes = 0;
  if (__builtin_mul_overflow(header.num_values, bytes_of(dtype), &num_bytes) ||
      num_bytes != values.size())
    throw NpyError("the header promises " + std::to_string(header.num_values) + " values of " +
                   std::to_string(bytes_of(dtype)) + " bytes, the file has " +
                   std::to_string(values.size()) + " bytes of data");
  return {"", header.descr, header.shape, values, dtype, header.fortran_order};
}

std::string npy_header(DType dtype, const std::vector<std::uint64_t>& shape, bool fortran_order) {
  std::string lengths;
  for (const std::uint64_t length : shape) lengths += std::to_string(length) + ", ";
  if (shape.size() > 1) lengths.resize(lengths.size() - 2);
  if (shape.size() == 1) lengths.pop_back();
  std::string text = "{'descr': '" + std::string(descr_of(dtype)) +
                     "', 'fortran_order': " + (fortran_order ? "True" : "False") + ", 'shape': (" +
                     lengths + "), }";
  // NumPy aligns the values to 64 bytes, with spaces and a newline.
  const std::size_t unpadded = 10 + text.size() + 1;
  text.append((64 - unpadded % 64) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace slimgrad::program
