#include "program/payload_files.h"

#include <sys/stat.h>

#include "program/flags.h"

namespace slimgrad::program {

PayloadFile parse_payload_file(std::span<const std::uint8_t> file) {
  PayloadFile result;
  result.is_container = is_container(file);
  if (!result.is_container) {
    result.tensors.push_back({"", "", {}, file, std::nullopt});
    return result;
  }
  ContainerIndex index = parse_container(file);
  result.metadata = std::move(index.metadata);
  for (ContainerEntry& entry : index.entries) {
    const auto payload = file.subspan(entry.offset, entry.num_bytes);
    const std::optional<DType> dtype = payload_dtype(entry.type);
    result.tensors.push_back(
        {std::move(entry.name), std::move(entry.type), std::move(entry.shape), payload, dtype});
  }
  return result;
}

std::vector<std::uint8_t> container_header(const Safetensors& input,
                                           const std::vector<std::uint64_t>& payload_bytes) {
  ContainerIndex index = {input.metadata, {}};
  for (std::size_t i = 0; i < input.tensors.size(); ++i) {
    const NamedTensor& tensor = input.tensors[i];
    index.entries.push_back({tensor.name, tensor.type, tensor.shape, payload_bytes[i]});
  }
  return slimgrad::container_header(index);
}

bool ends_with(const std::string& path, std::string_view ending) {
  return std::string_view(path).ends_with(ending);
}

void check_distinct(const std::string& in, const std::string& out) {
  // One that cannot be asked is found out when it is opened.
  struct stat of_in, of_out;
  if (stat(in.c_str(), &of_in) == 0 && stat(out.c_str(), &of_out) == 0 &&
      of_in.st_dev == of_out.st_dev && of_in.st_ino == of_out.st_ino)
    throw UsageError("expected an output other than the input, got '" + in + "' and '" + out + "'");
}

}  // namespace slimgrad::program
