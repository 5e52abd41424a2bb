// .sg files. The payload of a .npy file is the file itself; those of a .safetensors file are in a
// container (slimgrad/payload.h).
#ifndef SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_
#define SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_

#include <slimgrad/payload.h>

#include <string>
#include <vector>

#include "program/safetensors.h"
#include "program/tensor_bytes.h"

namespace slimgrad::program {

struct PayloadFile {
  bool is_container = false;
  decltype(Safetensors::metadata) metadata;
  // `bytes` is the payload; of a file with one payload the name and the type are empty.
  std::vector<NamedTensor> tensors;
};

// Checks the container, not its payloads. Throws PayloadError. The result refers to `file`.
PayloadFile parse_payload_file(std::span<const std::uint8_t> file);

// What precedes the payloads of the tensors of a file, given their sizes in bytes.
std::vector<std::uint8_t> container_header(const Safetensors& input,
                                           const std::vector<std::uint64_t>& payload_bytes);

bool ends_with(const std::string& path, std::string_view ending);

// Throws UsageError if both are the same file, by whatever names: the input would be overwritten.
void check_distinct(const std::string& in, const std::string& out);

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_PAYLOAD_FILES_H_
