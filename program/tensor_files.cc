#include "program/tensor_files.h"

#include <slimgrad/error.h>
#include <slimgrad/measure.h>

#include <algorithm>
#include <cmath>

#include "program/byte_files.h"
#include "program/open_tensors.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

template <typename Value>
void check_any_usable(std::span<const Value> values, std::string_view as) {
  if (values.empty()) throw UnusableTensor("the tensor is empty");
  std::size_t num_zeros = 0;
  for (const Value value : values) {
    if (value != 0 && std::isfinite(value)) return;
    num_zeros += value == 0;
  }
  const std::string all = "all " + std::to_string(values.size()) + " values are ";
  const std::string kind = num_zeros == values.size() ? "zero"
                           : num_zeros == 0           ? "NaN or infinite"
                                                      : "zero, NaN or infinite";
  throw UnusableTensor(all + kind + std::string(as));
}

std::string skipped_text(const std::vector<SkippedTensor>& skipped, bool several_files) {
  std::vector<Column> columns = {{"skipped", Align::kLeft}, {"because", Align::kLeft}};
  if (several_files) columns.insert(columns.begin(), {"file", Align::kLeft});
  Table table(columns);
  for (const SkippedTensor& tensor : skipped) {
    std::vector<std::string> cells = {tensor.name, tensor.reason};
    if (several_files) cells.insert(cells.begin(), tensor.path);
    table.add(std::move(cells));
  }
  return table.text();
}

Json skipped_json(const std::vector<SkippedTensor>& skipped) {
  Json json = Json::array();
  for (const SkippedTensor& tensor : skipped)
    json.push_back({{"file", tensor.path}, {"tensor", tensor.name}, {"reason", tensor.reason}});
  return json;
}

// What a tensor is called in an error.
std::string place_of(const std::string& path, const std::string& name) {
  return name.empty() ? path : path + ": tensor '" + name + "'";
}

// Calls work(), and makes what it says about the tensor an entry of `skipped` or an error.
// Whether it did the work.
bool work_or_skip(const FloatTensor& tensor, bool may_skip, std::vector<SkippedTensor>& skipped,
                  const std::function<void()>& work) {
  std::string reason;
  try {
    work();
    return true;
  } catch (const UnusableTensor& error) {
    if (!may_skip) throw FileError(place_of(tensor.path, tensor.name) + ": " + error.what());
    reason = error.what();
  } catch (const InvalidArgument& error) {
    if (!may_skip) throw;
    reason = error.what();
  }
  skipped.push_back({tensor.path, tensor.name, reason});
  return false;
}

}  // namespace

Option declare_tensor_files(Flags& flags, TensorFileOptions& options) {
  flags
      .option("--tensor", options.names,
              "Only this tensor of a .safetensors file; may be given several times")
      .value_name("NAME")
      .one_at_a_time();
  flags.flag("--bfloat16", options.bfloat16,
             ".npy files of 16-bit integers (uint16) hold bfloat16");
  declare_quiet(flags, options.quiet);
  return flags
      .option("FILE", options.paths,
              ".npy (float16, float32, float64, or bfloat16 as uint16) or .safetensors, of which "
              "all tensors of floating-point numbers are taken, one after the other")
      .value_name("")
      .offer_files({".npy", ".safetensors"});
}

void check_usable(std::span<const float> values, std::string_view as) {
  check_any_usable(values, as);
}
void check_usable(std::span<const double> values) { check_any_usable(values, ""); }

void for_each_tensor(const TensorFileOptions& options, const std::string& doing,
                     std::uint64_t weight, Report& report,
                     const std::function<void(const FloatTensor&, Progress&)>& work) {
  OpenTensors open = open_tensors(options.paths, options.names, options.bfloat16);
  const bool several_files = options.paths.size() > 1;
  std::uint64_t num_bytes = 0;
  for (const FloatTensor& tensor : open.tensors) num_bytes += weight * tensor.num_bytes();
  Progress progress(several_files ? doing : doing + ' ' + file_name(options.paths[0]), num_bytes,
                    options.quiet);
  bool any = false;
  for (const FloatTensor& tensor : open.tensors) {
    const bool has_name = !tensor.name.empty();
    progress.part(has_name        ? tensor.name
                  : several_files ? file_name(tensor.path)
                                  : "",
                  weight * tensor.num_bytes());
    any |= work_or_skip(tensor, has_name && options.names.empty(), open.skipped,
                        [&] { work(tensor, progress); });
  }
  if (!any) {
    const SkippedTensor* const first = open.skipped.empty() ? nullptr : &open.skipped.front();
    throw FileError(first == nullptr ? options.paths[0] + ": there are no tensors in it"
                                     : place_of(first->path, first->name) + ": " + first->reason +
                                           ", and no other tensor is left");
  }
  report.json["skipped"] = skipped_json(open.skipped);
  if (!open.skipped.empty()) report.text += '\n' + skipped_text(open.skipped, several_files);
}

std::string MeasuredTensor::note() const {
  std::string text;
  if (underflowed > 0)
    text += "Too small for float32, measured as zero: " + std::to_string(underflowed) + '\n';
  if (overflowed > 0)
    text += "Too large for float32, measured as infinite: " + std::to_string(overflowed) + '\n';
  return text;
}

MeasuredTensor measure_tensor(const FloatTensor& tensor, Progress& progress) {
  const FloatValues read = tensor.read_floats(progress);
  check_usable(read.values, tensor.type == DType::kFloat64 ? " in float32" : "");
  return {measure(read.values), read.overflowed, read.underflowed};
}

Json describe(const FloatTensor& tensor) {
  Json json = {{"file", tensor.path}};
  if (!tensor.name.empty()) json["tensor"] = tensor.name;
  json["dtype"] = dtype_name(tensor.type);
  json["shape"] = tensor.shape;
  return json;
}

std::string title(const FloatTensor& tensor) {
  std::string text = tensor.path;
  if (!tensor.name.empty()) text += ", " + tensor.name;
  text += ": " + std::string(dtype_name(tensor.type));
  if (!tensor.shape.empty()) text += ", " + shape_text(tensor.shape);
  return printable(text) + '\n';
}

}  // namespace slimgrad::program
