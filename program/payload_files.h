// .sg files. One payload of a .npy file is the file itself. Those of a .safetensors file are in a
// container:
//
//   4 bytes   magic: 0x8d 'S' 'G' 'C'
//   1 byte    version, 1
//   3 bytes   zero
//   8 bytes   size of the index, little-endian
//   index     a payload of int8, and so with a checksum; decoded it is JSON: {"metadata": {...} or
//             null, "tensors": [{"name", "dtype", "shape", "bytes": size of the payload}, ...]}
//   payloads  one after the other, in the order of the index
//
// A tensor of a type that payloads do not have (I64, BOOL, ...) is one of int8 with a single
// dimension here, and has its type and shape in the index.
#ifndef SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_
#define SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_

#include <slimgrad/payload.h>

#include <string>
#include <vector>

#include "program/json.h"
#include "program/tensor_bytes.h"

namespace slimgrad::program {

struct PayloadFile {
  bool is_container = false;
  Json metadata;
  // `bytes` is the payload; of a file with one payload the name and the type are empty.
  std::vector<NamedTensor> tensors;
};

// Checks the container, not its payloads. Throws PayloadError. The result refers to `file`.
PayloadFile parse_payload_file(std::span<const std::uint8_t> file);

// What comes before the payloads.
std::string container_header(const Json& metadata, const std::vector<NamedTensor>& tensors,
                             const std::vector<std::uint64_t>& payload_bytes);

bool ends_with(const std::string& path, std::string_view ending);

// Throws UsageError if both are the same file, by whatever names: the input would be overwritten.
void check_distinct(const std::string& in, const std::string& out);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_
