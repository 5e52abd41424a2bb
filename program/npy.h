// Finds the array of floating-point numbers in a NumPy .npy file: float16, float32, float64, and
// bfloat16, which NumPy does not know and which is stored as 16-bit integers (or, by ml_dtypes, as
// "V2").
#ifndef SLIMGRAD_PROGRAM_NPY_H_
#define SLIMGRAD_PROGRAM_NPY_H_

#include <string>

#include "program/float_tensor.h"
#include "program/npy_header.h"

namespace slimgrad::program {

// Checks everything but the values: afterwards the file is known to hold exactly what its header
// says. 16-bit integers are an error unless `bfloat16` says what they are. Throws NpyError with the
// path in front.
FloatTensor open_npy(const std::string& path, bool bfloat16);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_NPY_H_
