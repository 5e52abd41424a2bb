#include "program/float_tensor.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/half_float.h"
#include "program/byte_files.h"

namespace slimgrad::program {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are stored");

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePointer = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace

std::uint64_t FloatTensor::num_values() const {
  std::uint64_t product = 1;
  for (const std::uint64_t length : shape) product *= length;
  return product;
}

// Hands every stored value to `sink`, in pieces that stay in the cache.
template <typename Stored, typename Sink>
void FloatTensor::for_each(Progress& progress, Sink sink) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 15;
  const FilePointer file(std::fopen(path.c_str(), "rb"));
  if (!file) throw FileError(path + ": cannot open: " + std::strerror(errno));
  if (fseeko(file.get(), static_cast<off_t>(offset), SEEK_SET) != 0)
    throw FileError(path + ": cannot read: " + std::strerror(errno));
  std::vector<Stored> piece(std::min(kPiece, num_values()));
  for (std::uint64_t done = 0; done < num_values();) {
    piece.resize(std::min(kPiece, num_values() - done));
    if (std::fread(piece.data(), sizeof(Stored), piece.size(), file.get()) != piece.size())
      throw FileError(path + ": the file became shorter while it was read");
    for (const Stored value : piece) sink(value);
    done += piece.size();
    progress.done(done * sizeof(Stored));
  }
}

FloatValues FloatTensor::read_floats(Progress& progress) const {
  FloatValues result;
  result.values.resize(num_values());
  float* out = result.values.data();
  switch (type) {
    case DType::kFloat16:
      for_each<Float16Bits>(progress, [&](Float16Bits x) { *out++ = kernels::to_float(x); });
      break;
    case DType::kBFloat16:
      for_each<BFloat16Bits>(progress, [&](BFloat16Bits x) { *out++ = kernels::to_float(x); });
      break;
    case DType::kFloat32:
      for_each<float>(progress, [&](float value) { *out++ = value; });
      break;
    case DType::kFloat64:
      for_each<double>(progress, [&](double value) {
        const auto rounded = static_cast<float>(value);
        result.overflowed += std::isinf(rounded) && std::isfinite(value);
        result.underflowed += rounded == 0 && value != 0;
        *out++ = rounded;
      });
      break;
    case DType::kInt8:
      break;  // is not floating-point
  }
  return result;
}

std::vector<double> FloatTensor::read_doubles(Progress& progress) const {
  if (type != DType::kFloat64) {
    const FloatValues floats = read_floats(progress);
    return {floats.values.begin(), floats.values.end()};
  }
  std::vector<double> values(num_values());
  double* out = values.data();
  for_each<double>(progress, [&](double value) { *out++ = value; });
  return values;
}

}  // namespace slimgrad::program
