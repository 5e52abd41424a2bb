// Tensors as they lie in .npy and .safetensors files: a type, a shape and bytes that are not
// looked at. Files are not trusted: every length is compared with what is there before it is used.
#ifndef SLIMGRAD_PROGRAM_TENSOR_BYTES_H_
#define SLIMGRAD_PROGRAM_TENSOR_BYTES_H_

#include <slimgrad/payload_info.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace slimgrad::program {

struct NamedTensor {
  std::string name;  // empty in a .npy file
  std::string type;  // the file's own name of the type: "<f4", "BF16"
  std::vector<std::uint64_t> shape;
  std::span<const std::uint8_t> bytes;

  // What a payload can hold it as; nothing for the types that only other programs know, whose bytes
  // are coded as they are.
  std::optional<DType> dtype;
  bool fortran_order = false;  // .npy files only
};

inline bool is_aligned(std::span<const std::uint8_t> values, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(values.data()) % bytes_of(dtype) == 0;
}

// 16-bit integers are bfloat16 if `bfloat16` says so. The result refers to `file`.
// Throws std::runtime_error in one line.
NamedTensor parse_npy(std::span<const std::uint8_t> file, bool bfloat16);
// What comes before the values. bfloat16, which NumPy does not know, is written as uint16.
std::string npy_header(DType dtype, const std::vector<std::uint64_t>& shape, bool fortran_order);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_TENSOR_BYTES_H_
