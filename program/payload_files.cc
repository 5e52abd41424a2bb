#include "program/payload_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "program/flags.h"
#include "program/safetensors.h"

namespace slimgrad::program {
namespace {

constexpr std::array<std::uint8_t, 8> kStart = {0x8d, 'S', 'G', 'C', 1, 0, 0, 0};
constexpr std::size_t kIndexOffset = 16;

[[noreturn]] void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "damaged container: " + text);
}

// REQUIRES: the file has kIndexOffset bytes.
std::uint64_t index_size(std::span<const std::uint8_t> file) {
  std::uint64_t size;
  std::memcpy(&size, file.data() + 8, 8);
  return size;
}

Json parse_index(std::span<const std::uint8_t> file) {
  if (file.size() < kIndexOffset) fail(PayloadErrorCode::kTooShort, "the file ends too early");
  if (!std::equal(kStart.begin(), kStart.end(), file.begin()))
    fail(PayloadErrorCode::kBadVersion, "an unknown version");
  const std::uint64_t size = index_size(file);
  if (size > file.size() - kIndexOffset)
    fail(PayloadErrorCode::kTruncated, "the index is longer than the file");
  const std::vector<std::uint8_t> index = decode(file.subspan(kIndexOffset, size));
  Json json = parse_json(index);
  if (json.is_discarded()) fail(PayloadErrorCode::kBadHeader, "the index is no JSON");
  return json;
}

}  // namespace

PayloadFile parse_payload_file(std::span<const std::uint8_t> file) {
  PayloadFile result;
  result.is_container =
      file.size() >= 4 && std::equal(kStart.begin(), kStart.begin() + 4, file.begin());
  if (!result.is_container) {
    result.tensors.push_back({"", "", {}, file, std::nullopt});
    return result;
  }
  const Json index = parse_index(file);
  std::span<const std::uint8_t> rest = file.subspan(kIndexOffset + index_size(file));
  try {
    result.metadata = index.at("metadata");
    for (const Json& entry : index.at("tensors")) {
      NamedTensor tensor;
      tensor.name = entry.at("name").get<std::string>();
      tensor.type = entry.at("dtype").get<std::string>();
      tensor.shape = entry.at("shape").get<std::vector<std::uint64_t>>();
      tensor.dtype = safetensors_dtype(tensor.type);
      const auto size = entry.at("bytes").get<std::uint64_t>();
      if (size > rest.size()) fail(PayloadErrorCode::kTruncated, "the payloads end too early");
      tensor.bytes = rest.first(size);
      rest = rest.subspan(size);
      result.tensors.push_back(std::move(tensor));
    }
  } catch (const Json::exception&) {
    fail(PayloadErrorCode::kBadHeader, "a field of the index is missing or wrong");
  }
  if (!rest.empty()) fail(PayloadErrorCode::kTrailingBytes, "bytes follow the last payload");
  return result;
}

std::string container_header(const Json& metadata, const std::vector<NamedTensor>& tensors,
                             const std::vector<std::uint64_t>& payload_bytes) {
  Json index = {{"metadata", metadata}, {"tensors", Json::array()}};
  for (std::size_t i = 0; i < tensors.size(); ++i)
    index["tensors"].push_back({{"name", tensors[i].name},
                                {"dtype", tensors[i].type},
                                {"shape", tensors[i].shape},
                                {"bytes", payload_bytes[i]}});
  const std::string text = json_text(index);
  const std::vector<std::uint8_t> payload = encode({text.data(), DType::kInt8, {text.size()}});
  const std::uint64_t size = payload.size();
  std::string header(kIndexOffset, '\0');
  std::memcpy(header.data(), kStart.data(), kStart.size());
  std::memcpy(header.data() + 8, &size, 8);
  header.append(payload.begin(), payload.end());
  return header;
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
