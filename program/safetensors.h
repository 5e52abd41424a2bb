// .safetensors files: the size of the header (uint64, little-endian), the header as a JSON
// object {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, and the
// values, without gaps, in the order of their offsets.
#ifndef SLIMGRAD_PROGRAM_SAFETENSORS_H_
#define SLIMGRAD_PROGRAM_SAFETENSORS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/json.h"
#include "program/tensor_bytes.h"

namespace slimgrad::program {

struct Safetensors {
  Json metadata;                     // of the file: an object of strings, or null
  std::vector<NamedTensor> tensors;  // in the order of their bytes
};

Safetensors parse_safetensors(std::span<const std::uint8_t> file);
// What comes before the values, for tensors with these byte counts in this order.
std::string safetensors_header(const Json& metadata, const std::vector<NamedTensor>& tensors,
                               const std::vector<std::uint64_t>& num_bytes);

std::optional<DType> safetensors_dtype(const std::string& type);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_SAFETENSORS_H_
