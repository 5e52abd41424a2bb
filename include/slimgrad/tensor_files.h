// Tensors as payloads and .sg files, and back: payload.h for tensors. Payloads are uint8 tensors of
// one dimension, on the CPU; tensors of other devices are brought over. The same bytes as Python's.
//
//   slimgrad::save(network->named_parameters(), "weights.sg");
//   const auto weights = std::get<slimgrad::TensorDict>(slimgrad::load("weights.sg"));
//
// Throws InvalidArgument for misuse, PayloadError for bytes that are not a whole, undamaged payload
// or file, and std::filesystem::filesystem_error if a file cannot be read or written. Functions may
// be called from several threads at once.
#ifndef SLIMGRAD_TENSOR_FILES_H_
#define SLIMGRAD_TENSOR_FILES_H_

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <slimgrad/delta.h>
#include <slimgrad/payload.h>

namespace slimgrad {

// On all of torch's threads. Stochastic rounding without a seed in `options` draws one from torch's
// generator. `options.replaced` has to be empty.
at::Tensor encode(const at::Tensor& x, const EncodeOptions& options = {});
// Writes to `out`, a contiguous uint8 tensor of one dimension, and returns the part of it that is
// the payload. x.nbytes() + 64 bytes are always enough; throws InvalidArgument for too few.
at::Tensor encode_into(const at::Tensor& x, const EncodeOptions& options, const at::Tensor& out);

// The tensor of a payload, with its type and shape. Throws PayloadError instead of allocating more
// than max_bytes: payload.h says when that matters.
at::Tensor decode(const at::Tensor& payload, std::uint64_t max_bytes = kNoByteLimit);
// Writes to `out`, a contiguous tensor of that type and shape on the CPU, and returns it. After a
// PayloadError its values are unspecified.
at::Tensor decode_into(const at::Tensor& payload, const at::Tensor& out);

PayloadInfo inspect(const at::Tensor& payload);

using TensorDict = torch::OrderedDict<std::string, at::Tensor>;
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Writes a file of one tensor, or of several with names and, if given, metadata. By default every
// bit comes back. In other modes tensors of types that these do not take (float64, integers, ...)
// are coded without loss. The file appears under its name when it is complete.
void save(const at::Tensor& tensor, const std::filesystem::path& path,
          const EncodeOptions& options = {});
void save(const TensorDict& tensors, const std::filesystem::path& path,
          const EncodeOptions& options = {},
          const std::optional<Metadata>& metadata = std::nullopt);

// What was saved; the bytes of the file may be in memory. Throws PayloadError for a file whose
// tensors would together take more than max_bytes, before any of them is allocated. Names, shapes
// and metadata may take as much again, and 64 KiB.
using Loaded = std::variant<at::Tensor, TensorDict>;
Loaded load(const std::filesystem::path& path, std::uint64_t max_bytes = kNoByteLimit);
Loaded load(const at::Tensor& file, std::uint64_t max_bytes = kNoByteLimit);

// What changed between two tensors, or two sets of tensors, without loss (delta.h). Tensors of
// other devices are brought to the CPU. Two tensors have to have the same type and number of
// values; of two sets, tensors may be new, removed, of another type or shape.
at::Tensor delta(const at::Tensor& base, const at::Tensor& changed);
at::Tensor delta(const TensorDict& base, const TensorDict& changed);
// The changed tensor, on the device of the base. Throws WrongBase, a PayloadError, for another
// base. A dict whose tensors would together take more than max_bytes is a PayloadError before any
// of them is allocated; the result of one tensor is as large as its base.
at::Tensor apply_delta(const at::Tensor& base, const at::Tensor& payload);
TensorDict apply_delta(const TensorDict& base, const at::Tensor& payload,
                       std::uint64_t max_bytes = kNoByteLimit);
// Into `out`, which may be the base and has its type and the shape of the result. The base is
// checked before anything is written, and `out` is as it was after a PayloadError if it is the
// base.
at::Tensor apply_delta_into(const at::Tensor& base, const at::Tensor& payload,
                            const at::Tensor& out);

}  // namespace slimgrad

#endif  // SLIMGRAD_TENSOR_FILES_H_
