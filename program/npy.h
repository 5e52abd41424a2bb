// Reads an array of floating-point numbers from a NumPy .npy file: float16, float32, float64, and
// bfloat16, which NumPy does not know and which is stored as 16-bit integers (or, by ml_dtypes, as
// "V2"). Values come in the order of the file; statistics do not care whether it is C or Fortran.
//
// Opening checks everything but the values: after it the file is known to hold exactly what its
// header says, so that nothing is allocated by a length that a damaged file made up.
#ifndef SLIMGRAD_PROGRAM_NPY_H_
#define SLIMGRAD_PROGRAM_NPY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/npy_header.h"

namespace slimgrad::program {

enum class NpyType { kFloat16, kBfloat16, kFloat32, kFloat64 };

std::string_view type_name(NpyType type);  // "float16", ...
int bytes_of(NpyType type);

// Values as float32. Only a float64 can be outside float32's range.
struct FloatValues {
  std::vector<float> values;
  std::uint64_t overflowed = 0;   // finite in the file, Inf in `values`
  std::uint64_t underflowed = 0;  // not zero in the file, zero in `values`
};

class NpyFile {
 public:
  // Opens and checks. 16-bit integers are an error unless `bfloat16` says what they are.
  // Throws NpyError with the path in front.
  NpyFile(std::string path, bool bfloat16);

  const std::string& path() const { return path_; }
  NpyType type() const { return type_; }
  const std::vector<std::uint64_t>& shape() const { return header_.shape; }
  std::uint64_t num_values() const { return header_.num_values; }

  // All values. Throws NpyError if the file cannot be read to its end.
  FloatValues read_floats() const;
  std::vector<double> read_doubles() const;

 private:
  template <typename Stored, typename Sink>
  void for_each(Sink sink) const;

  std::string path_;
  NpyHeader header_;
  NpyType type_ = NpyType::kFloat32;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_NPY_H_
