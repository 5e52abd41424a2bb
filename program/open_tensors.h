// Which tensors are in .npy and .safetensors files, and where.
#ifndef SLIMGRAD_PROGRAM_OPEN_TENSORS_H_
#define SLIMGRAD_PROGRAM_OPEN_TENSORS_H_

#include <string>
#include <vector>

#include "program/float_tensor.h"

namespace slimgrad::program {

struct SkippedTensor {
  std::string path, name, reason;
};

struct OpenTensors {
  std::vector<FloatTensor> tensors;    // in the order of the files and of their bytes
  std::vector<SkippedTensor> skipped;  // of .safetensors files: types other than float
};

// Reads headers alone. With `names` only these tensors, which .safetensors files have; each of them
// has to be in one of the files. `bfloat16`: what 16-bit integers in .npy files are. Throws
// UsageError for names that do not exist, with some that do; FileError or NpyError for what cannot
// be read, is damaged, or is of another type and asked for by name.
OpenTensors open_tensors(const std::vector<std::string>& paths,
                         const std::vector<std::string>& names, bool bfloat16);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_OPEN_TENSORS_H_
