#include "arrays/coding/container_index.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/payload_header.h"

namespace slimgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kFileKeys = {"metadata", "tensors"};
constexpr std::array<std::string_view, 4> kEntryKeys = {"name", "dtype", "shape", "bytes"};

// Called for every token of the text. A function that returns false ends the reading.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  explicit IndexReader(std::uint64_t max_bytes) : max_bytes_(max_bytes), bytes_left_(max_bytes) {}

  bool is_complete() const { return place_ == Place::kEnd; }
  ContainerIndex take() { return std::move(index_); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        return enter(Place::kFile);
      case Place::kFile:
        index_.metadata.emplace();
        return is_value_of("metadata") && enter_metadata();
      case Place::kTensors:
        take_room(sizeof(ContainerEntry));
        index_.entries.emplace_back();
        seen_.fill(false);
        return enter(Place::kEntry);
      default:
        return false;
    }
  }
  bool end_object() override {
    switch (place_) {
      case Place::kFile:
        return saw_metadata_ && saw_tensors_ && enter(Place::kEnd);
      case Place::kMetadata:
        return enter(Place::kFile);
      case Place::kEntry:
        return std::ranges::all_of(seen_, std::identity()) && enter(Place::kTensors);
      default:
        return false;
    }
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kFile) {
      if (!is_value_of("tensors") || saw_tensors_) return false;
      saw_tensors_ = true;
      return enter(Place::kTensors);
    }
    return place_ == Place::kEntry && is_value_of("shape") && enter(Place::kShape);
  }
  bool end_array() override {
    return place_ == Place::kShape ? enter(Place::kEntry) : enter(Place::kFile);
  }

  bool key(string_t& text) override {
    if (place_ == Place::kMetadata) {
      take_room(sizeof(std::pair<std::string, std::string>) + text.size());
      index_.metadata->emplace_back(std::move(text), "");
      return true;
    }
    if (place_ == Place::kFile) {
      const auto* const found = std::ranges::find(kFileKeys, text);
      if (found == kFileKeys.end()) return false;
      key_ = *found;
      return true;
    }
    const auto* const found = std::ranges::find(kEntryKeys, text);
    if (found == kEntryKeys.end()) return false;
    key_ = *found;
    return !std::exchange(seen_[static_cast<std::size_t>(found - kEntryKeys.begin())], true);
  }
  bool string(string_t& text) override {
    take_room(text.size());
    if (place_ == Place::kMetadata) {
      index_.metadata->back().second = std::move(text);
      return true;
    }
    if (place_ != Place::kEntry || !(is_value_of("name") || is_value_of("dtype"))) return false;
    ContainerEntry& entry = index_.entries.back();
    (key_ == "name" ? entry.name : entry.type) = std::move(text);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      take_room(sizeof value);
      index_.entries.back().shape.push_back(value);
      return index_.entries.back().shape.size() <= kMaxShapeLengths && value <= kMaxShapeLength;
    }
    if (place_ != Place::kEntry || !is_value_of("bytes")) return false;
    index_.entries.back().num_bytes = value;
    return true;
  }
  bool null() override {
    return place_ == Place::kFile && is_value_of("metadata") && !std::exchange(saw_metadata_, true);
  }
  bool boolean(bool) override { return false; }
  bool number_integer(number_integer_t) override { return false; }
  bool number_float(number_float_t, const string_t&) override { return false; }
  bool binary(binary_t&) override { return false; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  enum class Place { kStart, kFile, kMetadata, kTensors, kEntry, kShape, kEnd };

  void take_room(std::uint64_t num_bytes) {
    if (num_bytes > bytes_left_)
      throw PayloadError(PayloadErrorCode::kTooLarge,
                         "[decode] damaged container: an index that takes more than " +
                             std::to_string(max_bytes_) + " bytes of memory");
    bytes_left_ -= num_bytes;
  }
  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool enter_metadata() { return !std::exchange(saw_metadata_, true) && enter(Place::kMetadata); }
  bool is_value_of(std::string_view key) const { return key_ == key; }

  const std::uint64_t max_bytes_;
  std::uint64_t bytes_left_;
  ContainerIndex index_;
  Place place_ = Place::kStart;
  std::string_view key_;  // the last one, of the file's or an entry's
  bool saw_metadata_ = false, saw_tensors_ = false;
  std::array<bool, kEntryKeys.size()> seen_ = {};
};

}  // namespace

std::optional<std::string> index_text(const ContainerIndex& index) {
  Json metadata;
  if (index.metadata) {
    // Its own way to put a key in looks for the key first, through all that are there.
    Json::object_t object;
    for (const auto& [key, value] : *index.metadata) object.push_back({key, value});
    metadata = std::move(object);
  }
  Json json = {{"metadata", std::move(metadata)}, {"tensors", Json::array()}};
  for (const ContainerEntry& entry : index.entries)
    json["tensors"].push_back({{"name", entry.name},
                               {"dtype", entry.type},
                               {"shape", entry.shape},
                               {"bytes", entry.num_bytes}});
  try {
    return json.dump();
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<ContainerIndex> read_index(std::span<const std::uint8_t> text,
                                         std::uint64_t max_bytes) {
  IndexReader reader(max_bytes);
  if (!Json::sax_parse(text.begin(), text.end(), &reader) || !reader.is_complete())
    return std::nullopt;
  return reader.take();
}

}  // namespace slimgrad
