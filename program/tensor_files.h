// The FILE.npy arguments that several subcommands take, and the checks they share.
#ifndef SLIMGRAD_PROGRAM_TENSOR_FILES_H_
#define SLIMGRAD_PROGRAM_TENSOR_FILES_H_

#include <slimgrad/tensor_stats.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/flags.h"
#include "program/json.h"
#include "program/npy.h"

namespace slimgrad::program {

struct TensorFileOptions {
  std::vector<std::string> paths;
  bool bfloat16 = false;
};

// Declares FILE.npy and --bfloat16; returns the former, for what the subcommand has to add.
Option declare_tensor_files(Flags& flags, TensorFileOptions& options);

// Opens all, and so finds the first unreadable or damaged one, before any is worked on.
std::vector<NpyFile> open_tensor_files(const TensorFileOptions& options);

// Throws NpyError if no value is finite and non-zero, and says which kind of nothing it is: an
// empty tensor, zeros, NaN. `as` is "" or says how the values were converted.
void check_usable(const std::string& path, std::span<const float> values, std::string_view as = "");
void check_usable(const std::string& path, std::span<const double> values);

struct MeasuredFile {
  TensorStats stats;
  std::uint64_t overflowed = 0;  // see FloatValues
  std::uint64_t underflowed = 0;

  // What the conversion from float64 did to values outside float32's range; "" if nothing.
  std::string note() const;
};

// Reads a file as float32 and measures it. Throws NpyError as above.
MeasuredFile measure_file(const NpyFile& file);

// Path, type and shape: what every report on a file begins with.
Json describe(const NpyFile& file);
std::string title(const NpyFile& file);  // "grad.npy: float32, 64 x 128"

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_TENSOR_FILES_H_
