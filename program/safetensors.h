// .safetensors files: the size of the header (uint64, little-endian), the header as a JSON
// object {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, and the
// values, without gaps, in the order of their offsets.
#ifndef SLIMGRAD_PROGRAM_SAFETENSORS_H_
#define SLIMGRAD_PROGRAM_SAFETENSORS_H_

#include <slimgrad/payload.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/tensor_bytes.h"

namespace slimgrad::program {

struct Safetensors {
  decltype(ContainerIndex::metadata) metadata;  // of the file
  std::vector<NamedTensor> tensors;             // in the order of their bytes
};

// The result refers to `file`. Throws std::runtime_error in one line.
Safetensors parse_safetensors(std::span<const std::uint8_t> file);
// What comes before the values, for tensors with these byte counts in this order.
std::string safetensors_header(const decltype(Safetensors::metadata)& metadata,
                               const std::vector<NamedTensor>& tensors,
                               const std::vector<std::uint64_t>& num_bytes);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_SAFETENSORS_H_
