// A tensor of floating-point numbers somewhere in a file: float16, bfloat16, float32 or float64.
// The values come in the order of the file; statistics do not care which that is.
#ifndef SLIMGRAD_PROGRAM_FLOAT_TENSOR_H_
#define SLIMGRAD_PROGRAM_FLOAT_TENSOR_H_

#include <slimgrad/payload_info.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/progress.h"

namespace slimgrad::program {

// Values as float32. Only a float64 can be outside float32's range.
struct FloatValues {
  std::vector<float> values;
  std::uint64_t overflowed = 0;   // finite in the file, Inf in `values`
  std::uint64_t underflowed = 0;  // not zero in the file, zero in `values`
};

// REQUIRES: the file has num_values() values at `offset`, so that nothing is allocated by a length
// that a damaged file made up.
struct FloatTensor {
  std::string path;
  std::string name;  // empty in a .npy file, which has one tensor
  DType type = DType::kFloat32;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;

  std::uint64_t num_values() const;
  std::uint64_t num_bytes() const { return num_values() * bytes_of(type); }

  // All values. Throw FileError if the file cannot be read so far any more.
  FloatValues read_floats(Progress& progress) const;
  std::vector<double> read_doubles(Progress& progress) const;

 private:
  template <typename Stored, typename Sink>
  void for_each(Progress& progress, Sink sink) const;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_FLOAT_TENSOR_H_
