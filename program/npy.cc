#include "program/npy.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "program/half.h"
#include "program/progress.h"

namespace slimgrad::program {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are stored");

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePointer = std::unique_ptr<std::FILE, CloseFile>;

FilePointer open_file(const std::string& path) {
  FilePointer file(std::fopen(path.c_str(), "rb"));
  if (!file) throw NpyError(path + ": cannot open: " + std::strerror(errno));
  return file;
}

// Of a regular file; anything else (a directory, a pipe that may block) is refused unopened.
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

NpyType type_of(const std::string& descr, bool bfloat16) {
  if (descr == "<f2") return NpyType::kFloat16;
  if (descr == "<f4") return NpyType::kFloat32;
  if (descr == "<f8") return NpyType::kFloat64;
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") {
    if (bfloat16) return NpyType::kBfloat16;
    throw NpyError("expected floating-point numbers, got '" + descr +
                   "'; if these are bfloat16, say --bfloat16");
  }
  if (descr.starts_with('>'))
    throw NpyError("expected little-endian numbers, got '" + descr +
                   "'; convert with array.astype(array.dtype.newbyteorder('<'))");
  throw NpyError("expected float16, float32 or float64, got '" + descr + "'");
}

void check_size(const NpyHeader& header, NpyType type, std::uint64_t file_bytes) {
  std::uint64_t data_bytes = 0;
  const std::uint64_t there = file_bytes - header.data_offset;
  const bool absurd = __builtin_mul_overflow(
      header.num_values, static_cast<std::uint64_t>(bytes_of(type)), &data_bytes);
  if (absurd || there < data_bytes)
    throw NpyError("truncated: the header promises " + std::to_string(header.num_values) +
                   " values of " + std::to_string(bytes_of(type)) + " bytes, the file has " +
                   std::to_string(there) + " bytes of data");
  if (there > data_bytes)
    throw NpyError(std::to_string(there - data_bytes) + " bytes follow the data");
}

}  // namespace

std::string_view type_name(NpyType type) {
  switch (type) {
    case NpyType::kFloat16:
      return "float16";
    case NpyType::kBfloat16:
      return "bfloat16";
    case NpyType::kFloat32:
      return "float32";
    case NpyType::kFloat64:
      return "float64";
  }
  return "?";
}

int bytes_of(NpyType type) {
  switch (type) {
    case NpyType::kFloat16:
    case NpyType::kBfloat16:
      return 2;
    case NpyType::kFloat32:
      return 4;
    case NpyType::kFloat64:
      return 8;
  }
  return 0;
}

NpyFile::NpyFile(std::string path, bool bfloat16) : path_(std::move(path)) {
  const std::uint64_t file_bytes = size_of_regular_file(path_);
  const FilePointer file = open_file(path_);
  std::string start(std::min(file_bytes, kMaxNpyHeaderBytes), '\0');
  if (std::fread(start.data(), 1, start.size(), file.get()) != start.size())
    throw NpyError(path_ + ": cannot read: " + std::strerror(errno));
  try {
    header_ = parse_npy_header(start);
    type_ = type_of(header_.descr, bfloat16);
    check_size(header_, type_, file_bytes);
  } catch (const NpyError& error) {
    throw NpyError(path_ + ": " + error.what());
  }
}

// Hands every stored value to `sink`, in pieces that stay in the cache.
template <typename Stored, typename Sink>
void NpyFile::for_each(Sink sink) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 15;
  const FilePointer file = open_file(path_);
  if (fseeko(file.get(), static_cast<off_t>(header_.data_offset), SEEK_SET) != 0)
    throw NpyError(path_ + ": cannot read: " + std::strerror(errno));
  Progress progress("reading " + path_, num_values() * sizeof(Stored));
  std::vector<Stored> piece(std::min(kPiece, num_values()));
  for (std::uint64_t done = 0; done < num_values();) {
    piece.resize(std::min(kPiece, num_values() - done));
    if (std::fread(piece.data(), sizeof(Stored), piece.size(), file.get()) != piece.size())
      throw NpyError(path_ + ": the file became shorter while it was read");
    for (const Stored value : piece) sink(value);
    done += piece.size();
    progress.done(done * sizeof(Stored));
  }
}

FloatValues NpyFile::read_floats() const {
  FloatValues result;
  result.values.resize(num_values());
  float* out = result.values.data();
  switch (type_) {
    case NpyType::kFloat16:
      for_each<std::uint16_t>([&](std::uint16_t bits) { *out++ = float16_to_float(bits); });
      break;
    case NpyType::kBfloat16:
      for_each<std::uint16_t>([&](std::uint16_t bits) { *out++ = bfloat16_to_float(bits); });
      break;
    case NpyType::kFloat32:
      for_each<float>([&](float value) { *out++ = value; });
      break;
    case NpyType::kFloat64:
      for_each<double>([&](double value) {
        const auto rounded = static_cast<float>(value);
        result.overflowed += std::isinf(rounded) && std::isfinite(value);
        result.underflowed += rounded == 0 && value != 0;
        *out++ = rounded;
      });
      break;
  }
  return result;
}

std::vector<double> NpyFile::read_doubles() const {
  if (type_ != NpyType::kFloat64) {
    const FloatValues floats = read_floats();
    return {floats.values.begin(), floats.values.end()};
  }
  std::vector<double> values(num_values());
  double* out = values.data();
  for_each<double>([&](double value) { *out++ = value; });
  return values;
}

}  // namespace slimgrad::program
