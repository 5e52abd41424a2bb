#include "program/npy.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace slimgrad::program {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePointer = std::unique_ptr<std::FILE, CloseFile>;

FilePointer open_file(const std::string& path) {
  FilePointer file(std::fopen(path.c_str(), "rb"));
  if (!file) throw NpyError(path + ": cannot open: " + std::strerror(errno));
  return file;
}

// Anything but a regular file (a directory, a pipe that may block) is refused without opening it.
std::uint64_t size_of_regular_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    throw NpyError(path + ": no such file");
  if (!error && std::filesystem::is_directory(status)) throw NpyError(path + ": is a directory");
  if (!error && !std::filesystem::is_regular_file(status))
    throw NpyError(path + ": is not a regular file");
  const std::uintmax_t size = error ? 0 : std::filesystem::file_size(path, error);
  if (error) throw NpyError(path + ": cannot read: " + error.message());
  return size;
}

DType type_of(const std::string& descr, bool bfloat16) {
  if (descr == "<f2") return DType::kFloat16;
  if (descr == "<f4") return DType::kFloat32;
  if (descr == "<f8") return DType::kFloat64;
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") {
    if (bfloat16) return DType::kBFloat16;
    throw NpyError("expected floating-point numbers, got '" + descr +
                   "'; if these are bfloat16, say --bfloat16");
  }
  if (descr.starts_with('>'))
    throw NpyError("expected little-endian numbers, got '" + descr +
                   "'; convert with array.astype(array.dtype.newbyteorder('<'))");
  throw NpyError("expected float16, float32 or float64, got '" + descr + "'");
}

void check_size(const NpyHeader& header, DType type, std::uint64_t file_bytes) {
  std::uint64_t data_bytes = 0;
  const std::uint64_t there = file_bytes - header.data_offset;
  const bool absurd = __builtin_mul_overflow(header.num_values, bytes_of(type), &data_bytes);
  if (absurd || there < data_bytes)
    throw NpyError("truncated: the header promises " + std::to_string(header.num_values) +
                   " values of " + std::to_string(bytes_of(type)) + " bytes, the file has " +
                   std::to_string(there) + " bytes of data");
  if (there > data_bytes)
    throw NpyError(std::to_string(there - data_bytes) + " bytes follow the data");
}

}  // namespace

FloatTensor open_npy(const std::string& path, bool bfloat16) {
  const std::uint64_t file_bytes = size_of_regular_file(path);
  const FilePointer file = open_file(path);
  std::string start(std::min(file_bytes, kMaxNpyHeaderBytes), '\0');
  if (std::fread(start.data(), 1, start.size(), file.get()) != start.size())
    throw NpyError(path + ": cannot read: " + std::strerror(errno));
  try {
    const NpyHeader header = parse_npy_header(start);
    const DType type = type_of(header.descr, bfloat16);
    check_size(header, type, file_bytes);
    return {path, "", type, header.shape, header.data_offset};
  } catch (const NpyError& error) {
    throw NpyError(path + ": " + error.what());
  }
}

}  // namespace slimgrad::program
