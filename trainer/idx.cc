// The idx format of MNIST and its kin: a magic number that says the type (8: bytes) and the number
// of dimensions, the dimensions as big-endian 32-bit numbers, the bytes.
#include <algorithm>

#include "trainer/data_set.h"

namespace slimgrad::trainer {
namespace {

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

}  // namespace slimgrad::trainer
