// NumPy's .npy files, versions 1, 2 and 3:
//
//   offset 0   6 bytes   magic: 0x93 'NUMPY'
//          6   2 bytes   version, major and minor
//          8   2 bytes (version 1) or 4 bytes (2 and 3), little endian: length of the text
//              the text: a Python dictionary such as
//              {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//              then the data, without a gap, to the end of the file
//
// The file is not trusted: every length is compared with what is there before it is used.
#ifndef SLIMGRAD_PROGRAM_NPY_H_
#define SLIMGRAD_PROGRAM_NPY_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "program/float_tensor.h"

namespace slimgrad::program {

// What is wrong with a file, in one line.
class NpyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct NpyHeader {
  std::string descr;                 // NumPy's name of the element type: "<f4"
  bool fortran_order = false;        // the order of the values in the file
  std::vector<std::uint64_t> shape;  // empty for a scalar
  std::uint64_t num_values = 1;      // the product of the shape
  std::uint64_t data_offset = 0;     // where the values begin in the file
};

// The text of an array of numbers takes about a hundred bytes. Version 1 cannot say more than
// 65,535; a longer one in version 2 or 3 describes a record type, which we do not read.
inline constexpr std::uint64_t kMaxNpyHeaderText = 65535;
// The most bytes from the beginning of a file that parse_npy_header needs.
inline constexpr std::uint64_t kMaxNpyHeaderBytes = 12 + kMaxNpyHeaderText;

// Reads the header from the beginning of a file: the first kMaxNpyHeaderBytes, or all of a shorter
// file. Throws NpyError.
NpyHeader parse_npy_header(std::string_view start_of_file);

// The array of floating-point numbers in a file: float16, float32, float64, and bfloat16, which
// NumPy does not know and which is stored as 16-bit integers (or, by ml_dtypes, as "V2"). Checks
// everything but the values: afterwards the file is known to hold exactly what its header says.
// 16-bit integers are an error unless `bfloat16` says what they are. Throws NpyError with the path
// in front.
FloatTensor open_npy(const std::string& path, bool bfloat16);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_NPY_H_
