// Several tensors with names in one file: what `slimgrad encode` makes of a .safetensors file.
// docs/format.md has the bytes: an index, then one payload for each tensor.
//
//   const ContainerIndex index = parse_container(file);
//   for (const ContainerEntry& entry : index.entries) {
//     const auto payload = file.subspan(entry.offset, entry.num_bytes);
//     check_entry(entry, inspect(payload));
//     decode(payload);
//   }
//
// Files are not trusted: a PayloadError for whatever no writer writes; nothing is allocated by a
// length that the bytes do not bear out, and an index takes at most 8 times the size of the file
// and 64 KiB, as text and again in memory. Pure functions.
#ifndef SLIMGRAD_CONTAINER_H_
#define SLIMGRAD_CONTAINER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/payload_info.h>

namespace slimgrad {

struct ContainerEntry {
  std::string name;  // UTF-8
  std::string type;  // in the words of .safetensors files: "F32", "BF16", "I64", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t num_bytes = 0;  // of the payload
  std::uint64_t offset = 0;     // of the payload, in the file
};

struct ContainerIndex {
  // Of the whole file, in order, no key twice; nothing if it has none.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata;
  std::vector<ContainerEntry> entries;  // no two with the same name
};

// By its first bytes. What is none may be a payload, and is the file of one tensor then.
bool is_container(std::span<const std::uint8_t> file);

// Checks the index, and that it and the payloads fill the file exactly. The payloads themselves are
// not looked at. `max_bytes`: what the index, with the metadata, may take beyond 64 KiB, for
// whoever reads files of strangers. Throws PayloadError.
ContainerIndex parse_container(std::span<const std::uint8_t> file,
                               std::uint64_t max_bytes = std::uint64_t{1} << 60);

// Throws PayloadError unless the payload with this header is the one that the index describes.
void check_entry(const ContainerEntry& entry, const PayloadInfo& info);

// What comes before the payloads; the entries' offsets are not looked at. Throws InvalidArgument
// for more than 32 dimensions, a length of 2^63 or more, two tensors of one name, metadata with a
// key twice, or text that is not UTF-8.
std::vector<std::uint8_t> container_header(const ContainerIndex& index);

// The type of a payload that holds a tensor of this type as it is. Nothing for others (I64, BOOL,
// ...): the payload of such a tensor is of int8, with one dimension, and has its bytes.
std::optional<DType> payload_dtype(std::string_view type);

}  // namespace slimgrad

#endif  // SLIMGRAD_CONTAINER_H_
