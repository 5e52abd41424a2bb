// The delta of two sets of tensors: hashes of both, then a container (container.cc) whose payloads
// are deltas or, of tensors that are new, lossless.
#include <slimgrad/delta.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "arrays/coding/checksum.h"
#include "base/check.h"
#include "formats/delta_header.h"
#include "formats/header_bytes.h"
#include "formats/payload_header.h"

namespace slimgrad {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Magic, version, three zeros, two hashes, checksum of all that.
constexpr std::size_t kSetHeaderBytes = 4 + 4 + 32 + kChecksumBytes;

[[noreturn]] void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "[apply_delta] " + text);
}

bool is_compatible(const DeltaTensor& base, const DeltaTensor& changed) {
  return base.type == changed.type && base.bytes.size() == changed.bytes.size();
}

// A type that payloads have, as it is; any other as its bytes.
TensorView view_of(const DeltaTensor& tensor) {
  const std::optional<DType> dtype = payload_dtype(tensor.type);
  if (!dtype) return {tensor.bytes.data(), DType::kInt8, {tensor.bytes.size()}};
  return {tensor.bytes.data(), *dtype, tensor.shape};
}

std::vector<std::uint8_t> whole_payload(const DeltaTensor& tensor) {
  TensorView view = view_of(tensor);
  // Values in a file may lie anywhere; a payload's are aligned. Fresh memory is.
  std::vector<std::uint8_t> aligned;
  if (reinterpret_cast<std::uintptr_t>(view.data) % bytes_of(view.dtype) != 0) {
    aligned.assign(tensor.bytes.begin(), tensor.bytes.end());
    view.data = aligned.data();
  }
  return encode(view);
}

Bytes payload_of(const ContainerEntry& entry, Bytes file) {
  return file.subspan(entry.offset, entry.num_bytes);
}

TensorHash named_hash(const DeltaTensor& tensor, const Parallel& parallel) {
  return {tensor.name, tensor.type, tensor.shape, hash_of(tensor, parallel)};
}

const DeltaTensor* find(std::span<const DeltaTensor> tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &DeltaTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

Hash128 hash_of(std::vector<TensorHash> tensors) {
  std::ranges::sort(tensors, {}, &TensorHash::name);
  header_bytes::Writer out;
  const auto put_text = [&](const std::string& text) {
    out.varint(text.size());
    for (const char c : text) out.byte(static_cast<std::uint8_t>(c));
  };
  for (const TensorHash& tensor : tensors) {
    put_text(tensor.name);
    put_text(tensor.type);
    out.varint(tensor.shape.size());
    for (const std::uint64_t length : tensor.shape) out.varint(length);
    out.fixed(tensor.hash.low, 8);
    out.fixed(tensor.hash.high, 8);
  }
  return hash128(out.take());
}

bool is_delta_set(Bytes file) {
  return file.size() >= kDeltaSetMagic.size() &&
         std::equal(kDeltaSetMagic.begin(), kDeltaSetMagic.end(), file.begin());
}

DeltaSet parse_delta_set(Bytes file, std::uint64_t max_bytes) {
  if (file.size() < kSetHeaderBytes)
    fail(PayloadErrorCode::kTooShort, "a damaged delta: the file ends too early");
  if (!is_delta_set(file))
    fail(PayloadErrorCode::kBadMagic,
         "not a delta of several tensors (the magic bytes are missing)");
  if (file[4] != kDeltaVersion || file[5] != 0 || file[6] != 0 || file[7] != 0)
    fail(PayloadErrorCode::kBadVersion, "a delta of an unknown version");
  const Bytes front = file.first(kSetHeaderBytes - kChecksumBytes);
  std::uint64_t sum;
  std::memcpy(&sum, file.data() + front.size(), kChecksumBytes);
  if (checksum(front) != sum)
    fail(PayloadErrorCode::kBadChecksum, "a damaged delta: its checksum is wrong");
  DeltaSet set;
  std::memcpy(&set.base, file.data() + 8, 16);
  std::memcpy(&set.result, file.data() + 24, 16);
  set.index = parse_container(file.subspan(kSetHeaderBytes), max_bytes);
  for (ContainerEntry& entry : set.index.entries) entry.offset += kSetHeaderBytes;
  return set;
}

std::vector<std::uint8_t> delta_set_header(const DeltaSet& set) {
  std::vector<std::uint8_t> header(kSetHeaderBytes);
  std::ranges::copy(kDeltaSetMagic, header.begin());
  header[4] = kDeltaVersion;
  std::memcpy(header.data() + 8, &set.base, 16);
  std::memcpy(header.data() + 24, &set.result, 16);
  const std::uint64_t sum = checksum(Bytes(header).first(kSetHeaderBytes - kChecksumBytes));
  std::memcpy(header.data() + kSetHeaderBytes - kChecksumBytes, &sum, kChecksumBytes);
  const std::vector<std::uint8_t> container = container_header(set.index);
  header.insert(header.end(), container.begin(), container.end());
  return header;
}

std::vector<std::uint8_t> delta_entry(const DeltaTensor* base, const DeltaTensor& changed,
                                      const Parallel& parallel) {
  if (base == nullptr || !is_compatible(*base, changed)) return whole_payload(changed);
  std::vector<std::uint8_t> payload = delta(*base, changed, parallel);
  // Where the two have little in common, the values alone are shorter.
  if (payload.size() > changed.bytes.size() / 2) {
    std::vector<std::uint8_t> whole = whole_payload(changed);
    if (whole.size() < payload.size()) return whole;
  }
  return payload;
}

std::vector<std::uint8_t> delta(
    std::span<const DeltaTensor> base, std::span<const DeltaTensor> changed,
    std::optional<std::vector<std::pair<std::string, std::string>>> metadata,
    const Parallel& parallel) {
  DeltaSet set;
  set.index.metadata = std::move(metadata);
  std::vector<TensorHash> hashes, base_hashes;
  std::vector<std::vector<std::uint8_t>> payloads;
  std::map<std::string, Hash128> known;  // of the base, from deltas
  for (const DeltaTensor& tensor : changed) {
    payloads.push_back(delta_entry(find(base, tensor.name), tensor, parallel));
    set.index.entries.push_back({tensor.name, tensor.type, tensor.shape, payloads.back().size()});
    if (is_delta(payloads.back())) {
      const DeltaInfo info = inspect_delta(payloads.back());
      known[tensor.name] = info.base;
      hashes.push_back({tensor.name, tensor.type, tensor.shape, info.result});
    } else {
      hashes.push_back(named_hash(tensor, parallel));
    }
  }
  for (const DeltaTensor& tensor : base) {
    const auto found = known.find(tensor.name);
    base_hashes.push_back(found == known.end()
                              ? named_hash(tensor, parallel)
                              : TensorHash{tensor.name, tensor.type, tensor.shape, found->second});
  }
  set.base = hash_of(std::move(base_hashes));
  set.result = hash_of(std::move(hashes));
  std::vector<std::uint8_t> file = delta_set_header(set);
  for (const std::vector<std::uint8_t>& payload : payloads)
    file.insert(file.end(), payload.begin(), payload.end());
  return file;
}

void check_base(const DeltaSet& set, Bytes file, std::span<const DeltaTensor> base,
                Verification verification, const Parallel& parallel) {
  std::map<std::string, Hash128> known;
  if (verification == Verification::kLast)
    for (const ContainerEntry& entry : set.index.entries)
      if (const Bytes payload = payload_of(entry, file); is_delta(payload))
        known[entry.name] = inspect_delta(payload).base;
  std::vector<TensorHash> hashes;
  for (const DeltaTensor& tensor : base) {
    const auto found = known.find(tensor.name);
    hashes.push_back({tensor.name, tensor.type, tensor.shape,
                      found == known.end() ? hash_of(tensor, parallel) : found->second});
  }
  const Hash128 hash = hash_of(std::move(hashes));
  if (hash != set.base)
    throw WrongBase("[apply_delta] expected the base with hash " + hash_text(set.base) +
                    ", got tensors with hash " + hash_text(hash));
}

void check_result(const DeltaSet& set, Bytes file, std::span<const DeltaTensor> others,
                  const Parallel& parallel) {
  std::vector<TensorHash> hashes;
  for (const ContainerEntry& entry : set.index.entries) {
    const Bytes payload = payload_of(entry, file);
    const DeltaTensor* const other = is_delta(payload) ? nullptr : find(others, entry.name);
    if (!is_delta(payload) && other == nullptr)
      throw_invalid("apply_delta", "the values of '" + entry.name + '\'', "none");
    hashes.push_back(
        {entry.name, entry.type, entry.shape,
         other == nullptr ? inspect_delta(payload).result : hash_of(*other, parallel)});
  }
  if (hash_of(std::move(hashes)) != set.result)
    fail(PayloadErrorCode::kBadHeader, "a damaged delta: other tensors than were encoded");
}

std::uint64_t entry_bytes(const ContainerEntry& entry, Bytes payload, const DeltaTensor* base) {
  if (!is_delta(payload)) {
    const PayloadInfo info = inspect(payload);
    check_entry(entry, info);
    return info.num_bytes();
  }
  const DeltaInfo info = inspect_delta(payload);
  const bool is_known = payload_dtype(entry.type) || info.type == entry.type;
  if (is_known ? info.type != entry.type || info.shape != entry.shape : info.type != "U8")
    fail(PayloadErrorCode::kBadHeader,
         "a damaged delta: '" + entry.name + "' has another type or shape than the index says");
  if (!is_known) {  // as many bytes as a tensor of that type and shape has
    PayloadInfo as_bytes;
    as_bytes.dtype = DType::kInt8;
    as_bytes.shape = info.shape;
    check_entry(entry, as_bytes);
  }
  if (base == nullptr || base->type != entry.type || base->bytes.size() != info.num_bytes())
    throw WrongBase("[apply_delta] expected a base with '" + entry.name + "' of type " +
                    entry.type + " and " + std::to_string(info.num_bytes()) + " bytes, got " +
                    (base == nullptr ? std::string("none")
                                     : base->type + " of " + std::to_string(base->bytes.size())));
  return info.num_bytes();
}

void apply_entry(const ContainerEntry& entry, Bytes payload, const DeltaTensor* base,
                 std::span<std::uint8_t> out, const Parallel& parallel) {
  try {
    if (!is_delta(payload)) return decode_into(payload, out);
    apply_delta(base->bytes, payload, out, parallel, Verification::kLast);
  } catch (const PayloadError& error) {
    throw PayloadError(error.code(), error.what() + (" ('" + entry.name) + "')");
  }
}

}  // namespace slimgrad
