#include <slimgrad/container.h>
#include <slimgrad/payload.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "arrays/coding/container_index.h"
#include "base/check.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::array<std::uint8_t, 4> kVersion = {1, 0, 0, 0};
constexpr std::size_t kSizeOffset = kContainerMagic.size() + kVersion.size();
constexpr std::size_t kIndexOffset = kSizeOffset + 8;

[[noreturn]] void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "[decode] damaged container: " + text);
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

struct TypeSize {
  std::string_view name;
  std::uint64_t num_bytes;
};
// Types that payloads hold as bytes. There may be others, of less than a byte: those are not
// checked.
constexpr std::array<TypeSize, 12> kOtherTypes = {{{"BOOL", 1},
                                                   {"U8", 1},
                                                   {"F8_E4M3", 1},
                                                   {"F8_E5M2", 1},
                                                   {"F8_E8M0", 1},
                                                   {"I16", 2},
                                                   {"U16", 2},
                                                   {"I32", 4},
                                                   {"U32", 4},
                                                   {"I64", 8},
                                                   {"U64", 8},
                                                   {"C64", 8}}};

// Whether a tensor of a type that payloads do not have can have so many bytes.
bool fits_bytes(const ContainerEntry& entry, std::uint64_t num_bytes) {
  const auto* const known = std::ranges::find(kOtherTypes, entry.type, &TypeSize::name);
  if (known == kOtherTypes.end()) return true;
  if (std::ranges::count(entry.shape, 0u) > 0) return num_bytes == 0;
  std::uint64_t product = known->num_bytes;
  for (const std::uint64_t length : entry.shape)
    if (__builtin_mul_overflow(product, length, &product)) return false;
  return product == num_bytes;
}

bool names_are_different(const ContainerIndex& index) {
  std::unordered_set<std::string_view> names;
  return std::ranges::all_of(
      index.entries, [&](const ContainerEntry& entry) { return names.insert(entry.name).second; });
}

}  // namespace

std::optional<DType> payload_dtype(std::string_view type) {
  for (const TypeName& known : kTypes)
    if (known.name == type) return known.dtype;
  return std::nullopt;
}

bool is_container(Bytes file) {
  return file.size() >= kContainerMagic.size() &&
         std::equal(kContainerMagic.begin(), kContainerMagic.end(), file.begin());
}

ContainerIndex parse_container(Bytes file) {
  if (file.size() < kIndexOffset) fail(PayloadErrorCode::kTooShort, "the file ends too early");
  if (!is_container(file)) fail(PayloadErrorCode::kBadMagic, "it begins with other bytes");
  if (!std::equal(kVersion.begin(), kVersion.end(), file.begin() + kContainerMagic.size()))
    fail(PayloadErrorCode::kBadVersion, "an unknown version");
  std::uint64_t index_bytes = 0;
  std::memcpy(&index_bytes, file.data() + kSizeOffset, 8);
  if (index_bytes > file.size() - kIndexOffset)
    fail(PayloadErrorCode::kTruncated, "the index is longer than the file");
  std::optional<ContainerIndex> index =
      read_index(decode(file.subspan(kIndexOffset, index_bytes), kMaxIndexBytes));
  if (!index) fail(PayloadErrorCode::kBadHeader, "an index that no encoder writes");
  if (!names_are_different(*index))
    fail(PayloadErrorCode::kBadHeader, "two tensors with the same name");
  std::uint64_t offset = kIndexOffset + index_bytes;
  for (ContainerEntry& entry : index->entries) {
    if (entry.num_bytes > file.size() - offset)
      fail(PayloadErrorCode::kTruncated, "the payloads end too early");
    entry.offset = offset;
    offset += entry.num_bytes;
  }
  if (offset != file.size())
    fail(PayloadErrorCode::kTrailingBytes, "bytes follow the last payload");
  return std::move(*index);
}

void check_entry(const ContainerEntry& entry, const PayloadInfo& info) {
  const std::optional<DType> dtype = payload_dtype(entry.type);
  const bool fits = dtype ? *dtype == info.dtype && entry.shape == info.shape
                          : info.dtype == DType::kInt8 && info.shape.size() == 1 &&
                                fits_bytes(entry, info.num_bytes());
  if (!fits) fail(PayloadErrorCode::kBadHeader, "'" + entry.name + "' is not what the index says");
}

std::vector<std::uint8_t> container_header(const ContainerIndex& index) {
  for (const ContainerEntry& entry : index.entries)
    check(entry.shape.size() <= kMaxShapeLengths, "encode", "at most 32 dimensions",
          entry.shape.size(), " of '", entry.name, "'");
  check(names_are_different(index), "encode", "tensors with different names", "two with the same");
  const std::optional<std::string> text = index_text(index);
  check(text.has_value(), "encode", "names and metadata in UTF-8", "other bytes");
  check(text->size() <= kMaxIndexBytes, "encode", "names and metadata of at most 128 MiB",
        text->size(), " bytes");
  const std::vector<std::uint8_t> payload = encode({text->data(), DType::kInt8, {text->size()}});
  const std::uint64_t size = payload.size();
  std::vector<std::uint8_t> header(kIndexOffset + size);
  std::memcpy(header.data(), kContainerMagic.data(), kContainerMagic.size());
  std::memcpy(header.data() + kContainerMagic.size(), kVersion.data(), kVersion.size());
  std::memcpy(header.data() + kSizeOffset, &size, 8);
  std::memcpy(header.data() + kIndexOffset, payload.data(), size);
  return header;
}

}  // namespace slimgrad
