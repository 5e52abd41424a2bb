#include "program/safetensors.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "program/output.h"

namespace slimgrad::program {
namespace {

[[noreturn]] void fail(const std::string& text) {
  throw std::runtime_error("damaged .safetensors file: " + text);
}

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
  entry.tensor.dtype = payload_dtype(entry.tensor.type);
  if (!entry.tensor.dtype) {
    PayloadInfo as_bytes;
    as_bytes.dtype = DType::kInt8;
    as_bytes.shape = {entry.tensor.bytes.size()};
    try {
      check_entry({name, entry.tensor.type, entry.tensor.shape}, as_bytes);
    } catch (const PayloadError&) {
      fail("a shape that does not fit the values");
    }
    return entry;
  }
  std::uint64_t num_bytes = bytes_of(*entry.tensor.dtype);
  for (const std::uint64_t length : entry.tensor.shape)
    if (__builtin_mul_overflow(num_bytes, length, &num_bytes))
      fail("a shape of more than 2^64 bytes");
  if (num_bytes != entry.tensor.bytes.size()) fail("a shape that does not fit the values");
  return entry;
}

decltype(Safetensors::metadata) parse_metadata(const Json& json) {
  if (json.is_null()) return std::nullopt;
  if (!json.is_object()) fail("metadata that are no object of strings");
  decltype(Safetensors::metadata) metadata(std::in_place);
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail("metadata that are no object of strings");
    metadata->emplace_back(key, value.get<std::string>());
  }
  return metadata;
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::uint8_t> file) {
  if (file.size() < 8) fail("shorter than 8 bytes");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > file.size() - 8) fail("the header is longer than the file");
  const auto header = file.subspan(8, header_bytes);
  const std::span<const std::uint8_t> values = file.subspan(8 + header_bytes);
  const Json json = parse_json(header);
  if (!json.is_object()) fail("the header is not a JSON object");
  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__")
      result.metadata = parse_metadata(entry);
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

std::string safetensors_header(const decltype(Safetensors::metadata)& metadata,
                               const std::vector<NamedTensor>& tensors,
                               const std::vector<std::uint64_t>& num_bytes) {
  // Its own way to put a key in looks for the key first, through all that are there.
  Json::object_t header_object, metadata_object;
  if (metadata) {
    for (const auto& [key, value] : *metadata) metadata_object.push_back({key, value});
    header_object.push_back({"__metadata__", std::move(metadata_object)});
  }
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    header_object.push_back({tensors[i].name,
                             {{"dtype", tensors[i].type},
                              {"shape", tensors[i].shape},
                              {"data_offsets", {offset, offset + num_bytes[i]}}}});
    offset += num_bytes[i];
  }
  std::string text = json_text(std::move(header_object));
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t size = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &size, 8);
  return header + text;
}

}  // namespace slimgrad::program
