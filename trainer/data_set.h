// What slimgrad-train learns from: images with a class each, or text, of which the next byte is to
// be predicted. Plain bytes, in memory; no torch, so that readers can be tested without it.
#ifndef SLIMGRAD_TRAINER_DATA_SET_H_
#define SLIMGRAD_TRAINER_DATA_SET_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slimgrad::trainer {

inline constexpr std::int64_t kTextContext = 128;     // bytes that a sample of text shows
inline constexpr std::int64_t kTextVocabulary = 256;  // every byte is a symbol

// Images are planes of rows, one byte a value. Text has no image: its samples are windows of
// kTextContext bytes and the one that follows.
struct SampleShape {
  bool is_text = false;
  std::int64_t channels = 0, height = 0, width = 0;
  std::int64_t classes = 0;

  std::int64_t bytes() const { return is_text ? kTextContext + 1 : channels * height * width; }
  bool operator==(const SampleShape&) const = default;
};

struct SampleBytes {
  std::vector<std::uint8_t> values;  // shape.bytes() for each
  std::vector<std::int64_t> labels;  // of images
  std::int64_t count = 0;
};

// How bytes become numbers around zero.
enum class Centring {
  kEachImage,  // by 64, less the image's own mean colour, where colours say nothing of the class
  kDataSet,    // less the mean of the channel over the training images, over its deviation
};

struct DataSet {
  std::string name;  // "glyphs", ...
  SampleShape shape;
  Centring centring = Centring::kDataSet;
  bool augmented = false;  // unless the user says otherwise
  SampleBytes training = {}, test = {};
};

// How many samples to take from the front, or to generate; 0: all there are, or the usual number.
struct SampleLimits {
  std::int64_t training = 0, test = 0;
};

// All that follow throw InvalidArgument in one line, "--data: ...", for files that are missing,
// truncated or not what they should be, or that hold fewer samples than asked for.

// `what` as --data has it: "glyphs", "grammar", "cifar10:DIR", "idx:DIR" or "text:FILE". What is
// generated follows from the seed, not from the threads that generate it.
DataSet open_data(std::string_view what, const SampleLimits& limits, std::uint64_t seed,
                  int num_threads);

// The binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin.
DataSet read_cifar10(const std::filesystem::path& folder, const SampleLimits& limits);
// MNIST's layout, unpacked: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...
DataSet read_idx(const std::filesystem::path& folder, const SampleLimits& limits);
// Any file. Its last tenth is for the test.
DataSet read_text(const std::filesystem::path& file, const SampleLimits& limits);

// Text cut into windows that share nothing but the byte between them.
SampleBytes cut_text(std::string_view text, std::int64_t limit);

// The usual augmentation of CIFAR-10: a random crop, of the image's own size, of the image with
// four black pixels around it, mirrored with probability 1/2. The draws are a function of (seed,
// epoch, index): not of the order of the samples, and not of threads. REQUIRES: both have
// shape.bytes() values and do not overlap.
void crop_and_flip(std::span<const std::uint8_t> image, const SampleShape& shape,
                   std::uint64_t seed, std::uint32_t epoch, std::uint64_t index,
                   std::span<std::uint8_t> out);

// A number that names the training bytes, to tell data sets apart: FNV-1a of 64 bits.
std::uint64_t hash_of(const SampleBytes& samples);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_DATA_SET_H_
