#include "program/tensor_files.h"

#include <slimgrad/measure.h>

#include <cmath>
#include <span>

namespace slimgrad::program {
namespace {

template <typename Value>
void check_any_usable(const std::string& path, std::span<const Value> values, std::string_view as) {
  if (values.empty()) throw NpyError(path + ": the tensor is empty");
  std::size_t num_zeros = 0;
  for (const Value value : values) {
    if (value != 0 && std::isfinite(value)) return;
    num_zeros += value == 0;
  }
  const std::string all = std::to_string(values.size());
  if (num_zeros == values.size())
    throw NpyError(path + ": all " + all + " values are zero" + std::string(as));
  if (num_zeros == 0)
    throw NpyError(path + ": all " + all + " values are NaN or infinite" + std::string(as));
  throw NpyError(path + ": all " + all + " values are zero, NaN or infinite" + std::string(as));
}

}  // namespace

Option declare_tensor_files(Flags& flags, TensorFileOptions& options) {
  flags.flag("--bfloat16", options.bfloat16, "Files of 16-bit integers (uint16) hold bfloat16");
  return flags
      .option("FILE.npy", options.paths,
              "NumPy arrays: float16, float32, float64, or bfloat16 as uint16")
      .value_name("");
}

std::vector<NpyFile> open_tensor_files(const TensorFileOptions& options) {
  std::vector<NpyFile> files;
  for (const std::string& path : options.paths) files.emplace_back(path, options.bfloat16);
  return files;
}

void check_usable(const std::string& path, std::span<const float> values, std::string_view as) {
  check_any_usable(path, values, as);
}
void check_usable(const std::string& path, std::span<const double> values) {
  check_any_usable(path, values, "");
}

std::string MeasuredFile::note() const {
  std::string text;
  if (underflowed > 0)
    text += "Too small for float32, measured as zero: " + std::to_string(underflowed) + '\n';
  if (overflowed > 0)
    text += "Too large for float32, measured as infinite: " + std::to_string(overflowed) + '\n';
  return text;
}

MeasuredFile measure_file(const NpyFile& file) {
  const FloatValues read = file.read_floats();
  check_usable(file.path(), read.values, file.type() == NpyType::kFloat64 ? " in float32" : "");
  return {measure(read.values), read.overflowed, read.underflowed};
}

Json describe(const NpyFile& file) {
  return {{"file", file.path()}, {"dtype", type_name(file.type())}, {"shape", file.shape()}};
}

std::string title(const NpyFile& file) {
  std::string text = file.path() + ": " + std::string(type_name(file.type()));
  const char* separator = ", ";
  for (const std::uint64_t length : file.shape()) {
    text += separator + std::to_string(length);
    separator = " x ";
  }
  return text + '\n';
}

}  // namespace slimgrad::program
