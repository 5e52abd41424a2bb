// The FILE arguments that several subcommands take, .npy and .safetensors, and the work on their
// tensors, one after the other: never more than one is in memory.
#ifndef SLIMGRAD_PROGRAM_TENSOR_FILES_H_
#define SLIMGRAD_PROGRAM_TENSOR_FILES_H_

#include <slimgrad/tensor_stats.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "program/flags.h"
#include "program/float_tensor.h"
#include "program/output.h"
#include "program/progress.h"

namespace slimgrad::program {

struct TensorFileOptions {
  std::vector<std::string> paths;
  std::vector<std::string> names;  // of tensors in .safetensors files; all if empty
  bool bfloat16 = false;
  bool quiet = false;
};

// Declares FILE, --tensor, --bfloat16 and --quiet; returns the first, for what the subcommand has
// to add.
Option declare_tensor_files(Flags& flags, TensorFileOptions& options);

// Why nothing can be said about a tensor, in a few words.
class UnusableTensor : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws UnusableTensor if no value is finite and non-zero, and says which kind of nothing it is:
// an empty tensor, zeros, NaN. `as` is "" or says how the values were converted.
void check_usable(std::span<const float> values, std::string_view as = "");
void check_usable(std::span<const double> values);

// Calls work(tensor, progress) for every tensor. All files are opened before, so that one that
// cannot be read or is damaged is found out before any work is done.
//
// Tensors of a .safetensors file that have other types, or for which `work` throws UnusableTensor
// or InvalidArgument, are skipped: a model has its zeros and its counters. The report says so, in
// "skipped" and at the end of its text. What was asked for by name, or is alone in its file, is a
// FileError instead, and so is it if nothing is left. `doing` is for the line of progress, and
// `weight` how many times longer the work takes than reading.
void for_each_tensor(const TensorFileOptions& options, const std::string& doing,
                     std::uint64_t weight, Report& report,
                     const std::function<void(const FloatTensor&, Progress&)>& work);

struct MeasuredTensor {
  TensorStats stats;
  std::uint64_t overflowed = 0;  // see FloatValues
  std::uint64_t underflowed = 0;

  // What the conversion from float64 did to values outside float32's range; "" if nothing.
  std::string note() const;
};

// Reads a tensor as float32 and measures it. Throws UnusableTensor as above.
MeasuredTensor measure_tensor(const FloatTensor& tensor, Progress& progress);

// Path, name, type and shape: what every report on a tensor begins with.
Json describe(const FloatTensor& tensor);
std::string title(const FloatTensor& tensor);  // "model.safetensors, weight: float32, 64 x 128"

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_TENSOR_FILES_H_
