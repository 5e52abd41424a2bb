// save and load: .sg files, of one tensor or of several with names.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_file.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <slimgrad/tensor_files.h>

#include "torch/checks.h"
#include "torch/coding/encode_options.h"
#include "torch/coding/file_types.h"
#include "torch/elements.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

using Names = std::vector<std::string>;

// ---- save --------------------------------------------------------------------------------------

// Types that no lossy mode takes are coded without loss, those that no payload has as their bytes.
at::Tensor payload_of(const std::string& name, const at::Tensor& tensor,
                      const EncodeOptions& options) {
  const at::Tensor x = tensor.detach().cpu();
  const EncodeOptions exact = {.coder = options.coder};
  const bool is_payload_type = find_dtype(x.scalar_type()).has_value();
  try {
    return encode(is_payload_type ? x : x.contiguous().reshape(-1).view(at::kChar),
                  is_float_dtype(x.scalar_type()) ? options : exact);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.what() + (" in '" + name) + '\'');
  }
}

at::Tensor tensor_of_bytes(const std::vector<std::uint8_t>& bytes) {
  at::Tensor result =
      at::empty({static_cast<std::int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte));
  std::ranges::copy(bytes, result.mutable_data_ptr<std::uint8_t>());
  return result;
}

// The bytes of a file: its index, then the payloads. REQUIRES: as many names as tensors.
std::vector<at::Tensor> container_parts(const std::vector<at::Tensor>& tensors, const Names& names,
                                        std::optional<Metadata> metadata,
                                        const EncodeOptions& options) {
  ContainerIndex index;
  index.metadata = std::move(metadata);
  for (std::size_t i = 0; i < names.size(); ++i) {
    check_values(tensors[i], "save", '\'' + names[i] + '\'');
    index.entries.push_back({names[i], file_type_name(tensors[i].scalar_type(), "save"), {}, 0});
    const at::IntArrayRef sizes = tensors[i].sizes();
    index.entries.back().shape.assign(sizes.begin(), sizes.end());
  }
  std::vector<at::Tensor> parts(1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    parts.push_back(payload_of(names[i], tensors[i], options));
    index.entries[i].num_bytes = static_cast<std::uint64_t>(parts.back().numel());
  }
  parts[0] = tensor_of_bytes(container_header(index));
  return parts;
}

std::vector<at::Tensor> file_parts_op(at::TensorList tensors, Names names, Names metadata,
                                      bool has_metadata, std::string_view mode, std::int64_t bits,
                                      std::int64_t exponent_bits, std::int64_t mantissa_bits,
                                      double scale, double threshold, double rate, double max_error,
                                      std::string_view survivors, std::string_view coder,
                                      std::string_view model, std::string_view rounding,
                                      std::optional<std::int64_t> seed) {
  check(tensors.size() == names.size(), "save", "a name for every tensor", names.size(), " for ",
        tensors.size());
  std::optional<Metadata> pairs;
  if (has_metadata) pairs.emplace();
  for (std::size_t i = 0; has_metadata && i + 1 < metadata.size(); i += 2)
    pairs->emplace_back(metadata[i], metadata[i + 1]);
  EncodeOptions options =
      encode_options(mode, bits, exponent_bits, mantissa_bits, survivors, coder, model, rounding);
  set_values(options, scale, threshold, rate, max_error, seed);
  return container_parts(tensors.vec(), names, std::move(pairs), options);
}

[[noreturn]] void throw_file_error(const char* what, const std::filesystem::path& path) {
  throw std::filesystem::filesystem_error(what, path,
                                          std::error_code(errno, std::generic_category()));
}

// Under another name until it is complete.
void write_file(const std::filesystem::path& path, const std::vector<at::Tensor>& parts) {
  std::filesystem::path unfinished = path;
  unfinished += ".part." + std::to_string(getpid());
  std::FILE* const file = std::fopen(unfinished.c_str(), "wbx");
  if (file == nullptr) throw_file_error("[save] cannot create", unfinished);
  bool complete = true;
  for (const at::Tensor& part : parts) {
    const auto size = static_cast<std::size_t>(part.numel());
    complete = complete && std::fwrite(part.const_data_ptr(), 1, size, file) == size;
  }
  complete = std::fclose(file) == 0 && complete;
  if (complete && std::rename(unfinished.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(unfinished.c_str());
  errno = error;
  throw_file_error("[save] cannot write", path);
}

// ---- load --------------------------------------------------------------------------------------

// Nothing is allocated for tensors before their types and all sizes were found to be in order.
std::tuple<Names, std::vector<at::Tensor>> load_file(const at::Tensor& file,
                                                     std::optional<std::int64_t> max_bytes) {
  check_values(file, "load", "file");
  check(file.scalar_type() == at::kByte && file.dim() == 1, "load",
        "a file as a uint8 tensor of one dimension", c10::toString(file.scalar_type()), " with ",
        file.dim(), " dimensions");
  const std::uint64_t limit = byte_limit(max_bytes);
  const at::Tensor contiguous = file.contiguous();
  const std::span<const std::uint8_t> bytes = elements<std::uint8_t>(contiguous);
  if (!is_container(bytes)) return {{}, {decode(contiguous, limit)}};
  const ContainerIndex index = parse_container(bytes, limit);
  std::uint64_t announced = 0;
  for (const ContainerEntry& entry : index.entries) {
    const PayloadDecoder decoder(bytes.subspan(entry.offset, entry.num_bytes), Verification::kLast);
    check_entry(entry, decoder.info());
    announced += decoder.info().num_bytes();
  }
  if (announced > limit)
    throw PayloadError(PayloadErrorCode::kTooLarge,
                       "[load] expected at most max_bytes=" + std::to_string(limit) +
                           " of values, got " + std::to_string(announced) + " bytes");
  for (const ContainerEntry& entry : index.entries)
    if (!file_type(entry.type))
      throw PayloadError(
          PayloadErrorCode::kBadHeader,
          "[load] expected types that torch has, got " + entry.type + " of '" + entry.name + '\'');
  std::tuple<Names, std::vector<at::Tensor>> result;
  for (const ContainerEntry& entry : index.entries) {
    const auto first = static_cast<std::int64_t>(entry.offset);
    const auto size = static_cast<std::int64_t>(entry.num_bytes);
    at::Tensor values = decode(contiguous.slice(0, first, first + size));
    const std::vector<std::int64_t> shape(entry.shape.begin(), entry.shape.end());
    if (!payload_dtype(entry.type)) values = values.view(*file_type(entry.type)).reshape(shape);
    std::get<0>(result).push_back(entry.name);
    std::get<1>(result).push_back(std::move(values));
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("file_parts", ValueErrors<&file_parts_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CPU, m) { m.impl("load_file", ValueErrors<&load_file>::call); }

}  // namespace slimgrad::torch_ops

namespace slimgrad {

void save(const at::Tensor& tensor, const std::filesystem::path& path,
          const EncodeOptions& options) {
  torch_ops::check_values(tensor, "save", "tensors");
  torch_ops::write_file(path, {encode(tensor, options)});
}

void save(const TensorDict& tensors, const std::filesystem::path& path,
          const EncodeOptions& options, const std::optional<Metadata>& metadata) {
  torch_ops::write_file(
      path, torch_ops::container_parts(tensors.values(), tensors.keys(), metadata, options));
}

Loaded load(const at::Tensor& file, std::uint64_t max_bytes) {
  const auto limit = static_cast<std::int64_t>(std::min(max_bytes, kNoByteLimit));
  auto [names, tensors] = torch_ops::load_file(file, limit);
  if (tensors.size() > names.size()) return tensors[0];
  TensorDict result;
  for (std::size_t i = 0; i < names.size(); ++i) result.insert(names[i], tensors[i]);
  return result;
}

// A path is mapped: its bytes come when they are decoded.
Loaded load(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  return load(size == 0 ? at::empty({0}, bytes)
                        : at::from_file(path.string(), /*shared=*/false, size, bytes),
              max_bytes);
}

}  // namespace slimgrad
