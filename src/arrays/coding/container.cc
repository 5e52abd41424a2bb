#include <slimgrad/payload.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "arrays/coding/container_index.h"
#include "arrays/coding/pieces.h"
#include "base/check.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::array<std::uint8_t, 4> kVersion = {1, 0, 0, 0};
constexpr std::size_t kSizeOffset = kContainerMagic.size() + kVersion.size();
constexpr std::size_t kIndexOffset = kSizeOffset + 8;
// What an index may take, as text and in memory: see index_bound().
constexpr std::uint64_t kFreeIndexBytes = std::uint64_t{1} << 16;
constexpr std::uint64_t kIndexBytesAFileByte = 8;

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

// Whether a tensor of a type that payloads do not have can have this number of bytes.
bool fits_bytes(const ContainerEntry& entry, std::uint64_t num_bytes) {
  const auto* const known = std::ranges::find(kOtherTypes, entry.type, &TypeSize::name);
  if (known == kOtherTypes.end()) return true;
  // Strides are products of lengths, too, also where there are no values.
  std::uint64_t product = known->num_bytes;
  for (const std::uint64_t length : entry.shape)
    if (__builtin_mul_overflow(product, std::max<std::uint64_t>(length, 1), &product) ||
        product > kMaxShapeLength)
      return false;
  return num_bytes == (std::ranges::count(entry.shape, 0u) > 0 ? 0 : product);
}

// `name_of`: from an element to its name.
template <typename T, typename NameOf>
bool names_are_different(const std::vector<T>& list, NameOf name_of) {
  std::vector<std::string_view> names;
  names.reserve(list.size());
  for (const T& element : list) names.push_back(std::invoke(name_of, element));
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}
bool names_are_different(const ContainerIndex& index) {
  return names_are_different(index.entries, &ContainerEntry::name);
}
bool keys_are_different(const ContainerIndex& index) {
  return !index.metadata ||
         names_are_different(*index.metadata, &std::pair<std::string, std::string>::first);
}

// A few bytes may stand for much text, and a little text for many strings. Indices as they are
// written take less than four times the file.
std::uint64_t index_bound(std::uint64_t file_bytes, std::uint64_t max_bytes) {
  return kFreeIndexBytes + std::min(kIndexBytesAFileByte * file_bytes, max_bytes);
}

// `payload` stands for the text. Throws PayloadError.
std::vector<std::uint8_t> decode_index(Bytes payload, std::uint64_t bound) {
  bound = std::min(bound, kMaxIndexBytes);
  try {
    return decode(payload, bound);
  } catch (const PayloadError& error) {
    if (error.code() != PayloadErrorCode::kTooLarge) throw;
    fail(PayloadErrorCode::kTooLarge, "an index of more than " + std::to_string(bound) + " bytes");
  }
}

bool is_readable(std::string_view text, std::uint64_t bound) {
  try {
    return text.size() <= bound &&
           read_index({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, bound);
  } catch (const PayloadError&) {
    return false;
  }
}

// Text that is mostly one character would be so short that a reader refuses it: it stays as it is.
std::vector<std::uint8_t> encode_index(const std::string& text, std::uint64_t other_bytes) {
  const TensorView view = {text.data(), DType::kInt8, {text.size()}};
  std::vector<std::uint8_t> payload = encode(view);
  if (!is_readable(text, index_bound(payload.size() + other_bytes, kMaxTensorBytes))) {
    payload.resize(encode_bound(view));
    payload.resize(store_raw(view, payload));
  }
  return payload;
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

ContainerIndex parse_container(Bytes file, std::uint64_t max_bytes) {
  if (file.size() < kIndexOffset) fail(PayloadErrorCode::kTooShort, "the file ends too early");
  if (!is_container(file)) fail(PayloadErrorCode::kBadMagic, "the magic bytes are missing");
  if (!std::equal(kVersion.begin(), kVersion.end(), file.begin() + kContainerMagic.size()))
    fail(PayloadErrorCode::kBadVersion, "an unknown version");
  std::uint64_t index_bytes = 0;
  std::memcpy(&index_bytes, file.data() + kSizeOffset, 8);
  if (index_bytes > file.size() - kIndexOffset)
    fail(PayloadErrorCode::kTruncated, "the index is longer than the file");
  const std::uint64_t bound = index_bound(file.size(), max_bytes);
  std::optional<ContainerIndex> index =
      read_index(decode_index(file.subspan(kIndexOffset, index_bytes), bound), bound);
  if (!index) fail(PayloadErrorCode::kBadHeader, "the index is invalid");
  if (!names_are_different(*index))
    fail(PayloadErrorCode::kBadHeader, "two tensors with the same name");
  if (!keys_are_different(*index))
    fail(PayloadErrorCode::kBadHeader, "metadata with the same key twice");
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
  if (!fits)
    fail(PayloadErrorCode::kBadHeader,
         "'" + entry.name + "' has another type, shape or size than the index says");
}

std::vector<std::uint8_t> container_header(const ContainerIndex& index) {
  std::uint64_t other_bytes = kIndexOffset;
  for (const ContainerEntry& entry : index.entries) {
    check(entry.shape.size() <= kMaxShapeLengths, "encode", "at most 32 dimensions",
          entry.shape.size(), " of '", entry.name, "'");
    for (const std::uint64_t length : entry.shape)
      check(length <= kMaxShapeLength, "encode", "lengths below 2^63", length, " of '", entry.name,
            "'");
    other_bytes += entry.num_bytes;
  }
  check(keys_are_different(index), "encode", "metadata with different keys", "a key twice");
  check(names_are_different(index), "encode", "tensors with different names", "a name twice");
  const std::optional<std::string> text = index_text(index);
  check(text.has_value(), "encode", "names and metadata in UTF-8", "other bytes");
  check(text->size() <= kMaxIndexBytes, "encode", "names and metadata of at most 128 MiB",
        text->size(), " bytes");
  const std::vector<std::uint8_t> payload = encode_index(*text, other_bytes);
  const std::uint64_t size = payload.size();
  std::vector<std::uint8_t> header(kIndexOffset + size);
  std::memcpy(header.data(), kContainerMagic.data(), kContainerMagic.size());
  std::memcpy(header.data() + kContainerMagic.size(), kVersion.data(), kVersion.size());
  std::memcpy(header.data() + kSizeOffset, &size, 8);
  std::memcpy(header.data() + kIndexOffset, payload.data(), size);
  return header;
}

}  // namespace slimgrad
