// The index of a container as JSON text, and back.
#ifndef SLIMGRAD_ARRAYS_CODING_CONTAINER_INDEX_H_
#define SLIMGRAD_ARRAYS_CODING_CONTAINER_INDEX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <slimgrad/payload.h>

namespace slimgrad {

// For comparison: readers of safetensors, whose headers say about the same, accept 100 MB.
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{128} << 20;

// In one line. Nothing if a string is not UTF-8.
std::optional<std::string> index_text(const ContainerIndex& index);

// Nothing for text that index_text() does not write, but for spaces and the order of keys. It is
// read without a tree: memory stays in proportion to what is kept, however deeply brackets nest,
// and time to the length of the text, however many keys there are. Throws PayloadError, kTooLarge,
// as soon as entries and metadata take more than max_bytes: a pair of empty strings has 6 bytes as
// text and 64 in memory.
std::optional<ContainerIndex> read_index(std::span<const std::uint8_t> text,
                                         std::uint64_t max_bytes);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_CONTAINER_INDEX_H_
