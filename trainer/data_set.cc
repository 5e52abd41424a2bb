#include "trainer/data_set.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <slimgrad/error.h>

#include "base/rng.h"
#include "trainer/generated_data.h"

namespace slimgrad::trainer {
namespace {

// "--data: PATH: expected X, got Y".
[[noreturn]] void refuse_data(const std::filesystem::path& path, std::string_view expected,
                              std::string_view got) {
  throw InvalidArgument("--data: " + path.string() + ": expected " + std::string(expected) +
                        ", got " + std::string(got));
}

std::vector<std::uint8_t> file_bytes(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw InvalidArgument("--data: no such file: " + path.string());
  const std::uint64_t size = std::filesystem::file_size(path);
  std::vector<std::uint8_t> bytes(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    throw InvalidArgument("--data: cannot read " + path.string());
  return bytes;
}

// ---- CIFAR-10's binary version: records of a label and 32 x 32 pixels in three planes -----------

constexpr std::int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr std::size_t kPixels = kChannels * kSide * kSide, kRecord = 1 + kPixels;

// Appends the records of one file, until there are `limit` (0: all).
void append(SampleBytes& samples, const std::filesystem::path& path, std::int64_t limit) {
  const std::vector<std::uint8_t> bytes = file_bytes(path);
  if (bytes.empty() || bytes.size() % kRecord != 0)
    refuse_data(path, "whole records of 3073 bytes", std::to_string(bytes.size()) + " bytes");
  std::size_t records = bytes.size() / kRecord;
  if (limit > 0) records = std::min(records, static_cast<std::size_t>(limit - samples.count));
  for (std::size_t i = 0; i < records; ++i) {
    const std::uint8_t* record = bytes.data() + i * kRecord;
    if (*record >= kClasses)
      refuse_data(path, "labels from 0 to 9", "label " + std::to_string(*record));
    samples.labels.push_back(*record);
    samples.values.insert(samples.values.end(), record + 1, record + kRecord);
  }
  samples.count += static_cast<std::int64_t>(records);
}

// ---- the idx format of MNIST --------------------------------------------------------------------
//
// A magic number that says the type (8: bytes) and the number of dimensions, the dimensions as
// big-endian 32-bit numbers, the bytes.

struct IdxFile {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;  // the header is cut off
};

IdxFile read_file(const std::filesystem::path& path, std::size_t dimensions) {
  if (!std::filesystem::exists(path) && std::filesystem::exists(path.string() + ".gz"))
    refuse_data(path, "an unpacked file", "only " + path.string() + ".gz");
  IdxFile file{.shape = {}, .bytes = file_bytes(path)};
  std::vector<std::uint8_t>& bytes = file.bytes;
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 ||
      bytes[3] != dimensions)
    refuse_data(path, "an idx file of bytes in " + std::to_string(dimensions) + " dimensions",
                "something else");
  std::uint64_t product = 1;
  for (std::size_t d = 1; d <= dimensions; ++d) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | bytes[4 * d + i];
    file.shape.push_back(static_cast<std::int64_t>(length));
    // Beyond the file's own size nothing has to be exact; and so nothing overflows.
    product = length == 0 ? 0 : std::min<std::uint64_t>(product, bytes.size()) * length;
  }
  if (product == 0 || bytes.size() - header != product)
    refuse_data(path, std::to_string(product) + " bytes behind the header",
                std::to_string(bytes.size() - header));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header));
  return file;
}

SampleBytes read_part(const std::filesystem::path& folder, const std::string& part,
                      std::int64_t limit, SampleShape& shape) {
  const std::filesystem::path labels_path = folder / (part + "-labels-idx1-ubyte");
  IdxFile images = read_file(folder / (part + "-images-idx3-ubyte"), 3);
  const IdxFile labels = read_file(labels_path, 1);
  if (labels.shape[0] != images.shape[0])
    refuse_data(labels_path, std::to_string(images.shape[0]) + " labels, one for each image",
                std::to_string(labels.shape[0]));
  shape.channels = 1;
  shape.height = images.shape[1];
  shape.width = images.shape[2];
  const std::int64_t count = limit > 0 ? std::min(limit, images.shape[0]) : images.shape[0];
  images.bytes.resize(static_cast<std::size_t>(count * shape.bytes()));
  return {.values = std::move(images.bytes),
          .labels = {labels.bytes.begin(), labels.bytes.begin() + count},
          .count = count};
}

}  // namespace

DataSet read_cifar10(const std::filesystem::path& folder, const SampleLimits& limits) {
  DataSet data{
      .name = "cifar10",
      .shape = {.channels = kChannels, .height = kSide, .width = kSide, .classes = kClasses},
      .augmented = true};
  // As the archive unpacks.
  const std::filesystem::path inner = folder / "cifar-10-batches-bin";
  const std::filesystem::path& from = std::filesystem::is_directory(inner) ? inner : folder;
  for (int batch = 1; batch <= 5; ++batch)
    if (limits.training == 0 || data.training.count < limits.training)
      append(data.training, from / ("data_batch_" + std::to_string(batch) + ".bin"),
             limits.training);
  append(data.test, from / "test_batch.bin", limits.test);
  return data;
}

DataSet read_idx(const std::filesystem::path& folder, const SampleLimits& limits) {
  DataSet data{.name = "idx", .shape = {}};
  SampleShape test_shape;
  data.training = read_part(folder, "train", limits.training, data.shape);
  data.test = read_part(folder, "t10k", limits.test, test_shape);
  if (test_shape.height != data.shape.height || test_shape.width != data.shape.width)
    refuse_data(folder, "test images of the size of the training images",
                std::to_string(test_shape.height) + " x " + std::to_string(test_shape.width));
  for (const SampleBytes* part : {&data.training, &data.test})
    for (const std::int64_t label : part->labels)
      data.shape.classes = std::max(data.shape.classes, label + 1);
  return data;
}

// ---- text ---------------------------------------------------------------------------------------

SampleBytes cut_text(std::string_view text, std::int64_t limit) {
  SampleBytes samples;
  const auto length = static_cast<std::int64_t>(text.size());
  samples.count = std::max<std::int64_t>(0, (length - 1) / kTextContext);
  if (limit > 0) samples.count = std::min(samples.count, limit);
  for (std::int64_t i = 0; i < samples.count; ++i) {
    const char* window = text.data() + i * kTextContext;
    samples.values.insert(samples.values.end(), window, window + kTextContext + 1);
  }
  return samples;
}

DataSet read_text(const std::filesystem::path& file, const SampleLimits& limits) {
  const std::vector<std::uint8_t> bytes = file_bytes(file);
  // A window for training, a window for the test, and the byte behind each.
  constexpr std::size_t kLeast = 10 * (kTextContext + 1);
  if (bytes.size() < kLeast)
    refuse_data(file, "at least " + std::to_string(kLeast) + " bytes",
                std::to_string(bytes.size()));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t border = text.size() - text.size() / 10;
  return {.name = "text",
          .shape = {.is_text = true, .classes = kTextVocabulary},
          .training = cut_text(text.substr(0, border), limits.training),
          .test = cut_text(text.substr(border), limits.test)};
}

// ---- any of them --------------------------------------------------------------------------------

DataSet open_data(std::string_view what, const SampleLimits& limits, std::uint64_t seed,
                  int num_threads) {
  if (what == "glyphs") return generate_glyphs(limits, seed, num_threads);
  if (what == "grammar") return generate_grammar(limits, seed);
  const auto path_behind = [&](std::string_view prefix) {
    return std::filesystem::path(what.substr(prefix.size()));
  };
  DataSet data;
  if (what.starts_with("cifar10:"))
    data = read_cifar10(path_behind("cifar10:"), limits);
  else if (what.starts_with("idx:"))
    data = read_idx(path_behind("idx:"), limits);
  else if (what.starts_with("text:"))
    data = read_text(path_behind("text:"), limits);
  else
    throw InvalidArgument(
        "--data: expected glyphs, grammar, cifar10:DIR, idx:DIR or text:FILE, got " +
        std::string(what));
  const auto check_count = [&](const char* option, std::int64_t wanted, std::int64_t there) {
    if (there < std::max<std::int64_t>(1, wanted))
      throw InvalidArgument(std::string(option) + ": expected at most the " +
                            std::to_string(there) + " samples in the data, got " +
                            std::to_string(wanted));
  };
  check_count("--train-size", limits.training, data.training.count);
  check_count("--test-size", limits.test, data.test.count);
  return data;
}

std::uint64_t hash_of(const SampleBytes& samples) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const std::uint8_t value : samples.values) add(value);
  for (const std::int64_t label : samples.labels) add(static_cast<std::uint8_t>(label));
  return hash;
}

void crop_and_flip(std::span<const std::uint8_t> image, const SampleShape& shape,
                   std::uint64_t seed, std::uint32_t epoch, std::uint64_t index,
                   std::span<std::uint8_t> out) {
  constexpr std::uint32_t kPurpose = 0x61756700;  // apart from the draws of glyphs
  constexpr std::int64_t kPadding = 4;
  const PhiloxWords words = philox(
      {kPurpose, epoch, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const auto shift = [](std::uint32_t word) {
    return static_cast<std::int64_t>(std::uint64_t{word} * (2 * kPadding + 1) >> 32) - kPadding;
  };
  const std::int64_t down = shift(words[0]), right = shift(words[1]);
  const bool mirrored = (words[2] & 1) != 0;
  const std::int64_t height = shape.height, width = shape.width;
  std::ranges::fill(out, std::uint8_t{0});
  for (std::int64_t row = 0; row < shape.channels * height; ++row) {
    const std::int64_t from_y = row % height + down;
    if (from_y < 0 || from_y >= height) continue;
    const std::uint8_t* from = image.data() + (row / height * height + from_y) * width;
    std::uint8_t* to = out.data() + row * width;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t from_x = (mirrored ? width - 1 - x : x) + right;
      if (from_x >= 0 && from_x < width) to[x] = from[from_x];
    }
  }
}

}  // namespace slimgrad::trainer
