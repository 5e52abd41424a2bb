// CIFAR-10's binary version: records of a label and 32 x 32 pixels in three planes.
#include <algorithm>

#include "trainer/data_set.h"

namespace slimgrad::trainer {
namespace {

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

}  // namespace slimgrad::trainer
