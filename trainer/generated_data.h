// Data that slimgrad-train generates, so that it runs where there is none: images and text.
#ifndef SLIMGRAD_TRAINER_GENERATED_DATA_H_
#define SLIMGRAD_TRAINER_GENERATED_DATA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data_set.h"

namespace slimgrad::trainer {

// ---- glyphs -------------------------------------------------------------------------------------
//
// One of ten line drawings under a random affine map,
// in random colours on a random background, with distracting strokes and blobs behind it and noise
// over it. Colours carry no information and any glyph may be lighter or darker than its background,
// so no fixed weighting of the pixels tells the classes apart: a linear model fails.
//
// An image is a function of (seed, split, index) alone: not of threads, and not of the machine,
// since it is computed with +, -, *, / and sqrt, which IEEE 754 rounds the same way everywhere.

inline constexpr int kNumClasses = 10;
inline constexpr int kNumChannels = 3;
inline constexpr int kImageSide = 32;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kImageBytes = kNumChannels * kImagePixels;

// Training and test images are drawn from one distribution with random numbers of their own.
enum class Split : std::uint32_t { kTraining = 1, kTest = 2 };

// The class of an image. Classes alternate, so every ten images in a row hold each class once.
constexpr int glyph_class(std::uint64_t index) { return static_cast<int>(index % kNumClasses); }
std::string_view glyph_name(int glyph_class);

// Draws image `index` as a plane of red, one of green and one of blue. About 0.1 ms.
// REQUIRES: image.size() == kImageBytes.
void draw_glyph(std::uint64_t seed, Split split, std::uint64_t index,
                std::span<std::uint8_t> image);

struct GlyphSet {
  std::vector<std::uint8_t> images;  // kImageBytes each
  std::vector<std::int64_t> labels;
};

// Images 0 to num_images - 1, drawn on `num_threads` threads. REQUIRES: num_threads > 0.
GlyphSet draw_glyphs(std::uint64_t seed, Split split, std::int64_t num_images, int num_threads);

DataSet generate_glyphs(const SampleLimits& limits, std::uint64_t seed, int num_threads);

// ---- grammar ------------------------------------------------------------------------------------
//
// Sentences of a small grammar. Verbs agree with a noun that may stand a clause away, brackets are
// closed in the reverse of the order in which they were opened, and a quoted word is repeated at
// the end of its sentence; so a model with attention does better than one that counts neighbours. A
// text is a function of (seed, stream) alone.

// At least `size` characters: the last sentence is whole.
std::string grammar_text(std::uint64_t seed, std::uint32_t stream, std::size_t size);

DataSet generate_grammar(const SampleLimits& limits, std::uint64_t seed);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GENERATED_DATA_H_
