#include "program/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace slimgrad::program {
namespace {

[[noreturn]] void fail(const std::string& text) {
  throw std::runtime_error("damaged .safetensors file: " + text);
}

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<TypeName, 5> kTypes = {{{"F32", DType::kFloat32},
                                             {"BF16", DType::kBFloat16},
                                             {"F16", DType::kFloat16},
                                             {"F64", DType::kFloat64},
                                             {"I8", DType::kInt8}}};

struct Entry {
  std::uint64_t begin, end;
  NamedTensor tensor;
};

Entry parse_entry(const std::string& name, const Json& json, std::span<const std::uint8_t> values) {
  Entry entry;
  entry.tensor.name = name;
  try {
    entry.tensor.type = json.at("dtype").get<std::string>();
    for (const Json& length : json.at("shape")) {
      if (!length.is_number_unsigned()) fail("a shape that is no list of lengths");
      entry.tensor.shape.push_back(length.get<std::uint64_t>());
    }
    const Json& offsets = json.at("data_offsets");
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail("data_offsets that are no pair of numbers");
    entry.begin = offsets[0].get<std::uint64_t>();
    entry.end = offsets[1].get<std::uint64_t>();
  } catch (const Json::exception&) {
    fail("an entry without dtype, shape or data_offsets");
  }
  if (entry.begin > entry.end || entry.end > values.size())
    fail("values beyond the end of the file");
  entry.tensor.bytes = values.subspan(entry.begin, entry.end - entry.begin);
  entry.tensor.dtype = safetensors_dtype(entry.tensor.type);
  if (!entry.tensor.dtype) return entry;
  std::uint64_t num_bytes = bytes_of(*entry.tensor.dtype);
  for (const std::uint64_t length : entry.tensor.shape)
    if (__builtin_mul_overflow(num_bytes, length, &num_bytes)) fail("an absurd shape");
  if (num_bytes != entry.tensor.bytes.size()) fail("a shape that does not fit the values");
  return entry;
}

}  // namespace

std::optional<DType> safetensors_dtype(const std::string& type) {
  for (const TypeName& known : kTypes)
    if (known.name == type) return known.dtype;
  return std::nullopt;
}

Safetensors parse_safetensors(std::span<const std::uint8_t> file) {
  if (file.size() < 8) fail("shorter than 8 bytes");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > file.size() - 8) fail("the header is longer than the file");
  const auto header = file.subspan(8, header_bytes);
  const std::span<const std::uint8_t> values = file.subspan(8 + header_bytes);
  const Json json = parse_json(header);
  if (!json.is_object()) fail("the header is no JSON object");
  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__")
      result.metadata = entry;
    else
      entries.push_back(parse_entry(name, entry, values));
  }
  std::ranges::stable_sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  std::uint64_t covered = 0;
  for (Entry& entry : entries) {
    if (entry.begin != covered) fail("gaps or overlaps between tensors");
    covered = entry.end;
    result.tensors.push_back(std::move(entry.tensor));
  }
  if (covered != values.size()) fail("bytes after the last tensor");
  return result;
}

std::string safetensors_header(const Json& metadata, const std::vector<NamedTensor>& tensors,
                               const std::vector<std::uint64_t>& num_bytes) {
  Json json = Json::object();
  if (!metadata.is_null()) json["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    json[tensors[i].name] = {{"dtype", tensors[i].type},
                             {"shape", tensors[i].shape},
                             {"data_offsets", {offset, offset + num_bytes[i]}}};
    offset += num_bytes[i];
  }
  std::string text = json_text(json);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t size = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &size, 8);
  return header + text;
}

}  // namespace slimgrad::program
