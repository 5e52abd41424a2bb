#include "trainer/generated_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>

#include "base/rng.h"

namespace slimgrad::trainer {
namespace {

struct Point {
  float x, y;
};
struct Segment {
  Point from, to;
};
using Colour = std::array<float, kNumChannels>;
using Planes = std::array<float, kImageBytes>;

// ---- the drawings: in a square from -1 to 1, y downwards ------------------------------------

struct Drawing {
  std::string_view name;
  std::vector<Segment> strokes;
};

std::vector<Segment> polygon(const std::vector<Point>& corners) {
  std::vector<Segment> sides;
  for (std::size_t i = 0; i < corners.size(); ++i)
    sides.push_back({corners[i], corners[(i + 1) % corners.size()]});
  return sides;
}

const std::array<Drawing, kNumClasses>& drawings() {
  static const std::array<Drawing, kNumClasses> all = {{
      {"ring",
       polygon(
           {{1, 0}, {.7f, .7f}, {0, 1}, {-.7f, .7f}, {-1, 0}, {-.7f, -.7f}, {0, -1}, {.7f, -.7f}})},
      {"cross", {{{-1, 0}, {1, 0}}, {{0, -1}, {0, 1}}}},
      {"triangle", polygon({{0, -1}, {1, .8f}, {-1, .8f}})},
      {"square", polygon({{-.9f, -.9f}, {.9f, -.9f}, {.9f, .9f}, {-.9f, .9f}})},
      {"T", {{{-1, -1}, {1, -1}}, {{0, -1}, {0, 1}}}},
      {"L", {{{-.7f, -1}, {-.7f, 1}}, {{-.7f, 1}, {.8f, 1}}}},
      {"Z", {{{-.9f, -1}, {.9f, -1}}, {{.9f, -1}, {-.9f, 1}}, {{-.9f, 1}, {.9f, 1}}}},
      {"E",
       {{{-.7f, -1}, {-.7f, 1}},
        {{-.7f, -1}, {.8f, -1}},
        {{-.7f, 0}, {.6f, 0}},
        {{-.7f, 1}, {.8f, 1}}}},
      {"arrow", {{{0, 1}, {0, -1}}, {{0, -1}, {-.8f, -.1f}}, {{0, -1}, {.8f, -.1f}}}},
      {"H", {{{-.8f, -1}, {-.8f, 1}}, {{.8f, -1}, {.8f, 1}}, {{-.8f, 0}, {.8f, 0}}}},
  }};
  return all;
}

// ---- random numbers --------------------------------------------------------------------------

// The random numbers of one image, one after the other.
class ImageRandom {
 public:
  ImageRandom(std::uint64_t seed, Split split, std::uint64_t index)
      : key0_(static_cast<std::uint32_t>(seed)),
        key1_(static_cast<std::uint32_t>(seed >> 32)),
        counter_{0, static_cast<std::uint32_t>(split), static_cast<std::uint32_t>(index),
                 static_cast<std::uint32_t>(index >> 32)} {}

  std::uint32_t word() {
    if (used_ == words_.size()) {
      words_ = philox(counter_, key0_, key1_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(word() >> 8) * 0x1p-24f);
  }
  Point point(float low, float high) {
    const float x = uniform(low, high);
    return {x, uniform(low, high)};
  }
  Colour colour() {
    Colour colour;
    for (float& channel : colour) channel = uniform(0, 1);
    return colour;
  }
  // The sum of three uniform numbers: nearly normal, with standard deviation 1 and no tails. The
  // ten bits of each are enough for noise on pixels of eight.
  float noise() {
    const std::uint32_t bits = word();
    const std::uint32_t sum = (bits & 1023) + (bits >> 10 & 1023) + (bits >> 20 & 1023);
    return (static_cast<float>(sum) - 1534.5f) * (1 / 512.0f);
  }

 private:
  std::uint32_t key0_, key1_;
  PhiloxWords counter_;
  PhiloxWords words_{};
  std::size_t used_ = 4;
};

// ---- painting --------------------------------------------------------------------------------

float distance(Point p, const Segment& segment) {
  const float dx = segment.to.x - segment.from.x, dy = segment.to.y - segment.from.y;
  const float px = p.x - segment.from.x, py = p.y - segment.from.y;
  const float length2 = dx * dx + dy * dy;
  const float along = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0f, 1.0f) : 0;
  const float ex = px - along * dx, ey = py - along * dy;
  return std::sqrt(ex * ex + ey * ey);
}

// Strokes of one colour, antialiased: a pixel takes as much of it as the pen covers, to within half
// a pixel of its edge.
void paint(Planes& planes, std::span<const Segment> strokes, float radius, const Colour& colour) {
  for (int i = 0; i < kImagePixels; ++i) {
    const Point pixel{static_cast<float>(i % kImageSide) + .5f,
                      static_cast<float>(i / kImageSide) + .5f};
    float nearest = 2 * kImageSide;
    for (const Segment& stroke : strokes) nearest = std::min(nearest, distance(pixel, stroke));
    const float cover = std::clamp(radius - nearest + .5f, 0.0f, 1.0f);
    for (int c = 0; c < kNumChannels; ++c) {
      float& value = planes[c * kImagePixels + i];
      value += cover * (colour[c] - value);
    }
  }
}

// The background fades from one colour at the top to another at the bottom.
void paint_background(Planes& planes, const Colour& top, const Colour& bottom) {
  for (int c = 0; c < kNumChannels; ++c)
    for (int i = 0; i < kImagePixels; ++i) {
      const float down = static_cast<float>(i / kImageSide) / (kImageSide - 1);
      planes[c * kImagePixels + i] = top[c] + down * (bottom[c] - top[c]);
    }
}

float contrast(const Colour& a, const Colour& b) {
  float sum = 0;
  for (int c = 0; c < kNumChannels; ++c) sum += std::abs(a[c] - b[c]);
  return sum;
}

// A colour that can be told from the background: about one in three or four drawn at random.
Colour visible_colour(ImageRandom& random, const Colour& top, const Colour& bottom) {
  constexpr float kVisible = 0.9f;
  Colour colour;
  do {
    colour = random.colour();
  } while (contrast(colour, top) < kVisible || contrast(colour, bottom) < kVisible);
  return colour;
}

// The drawing's strokes in pixels: stretched, sheared, rotated, moved.
std::vector<Segment> place(const Drawing& drawing, ImageRandom& random) {
  const float size = random.uniform(6, 9.5f), stretch = random.uniform(.8f, 1.25f);
  const float shear = random.uniform(-.25f, .25f);
  // With t = tan(angle / 2), the rotation is ((1 - t^2), 2 t) / (1 + t^2): no sine, whose last bit
  // is the library's business. 0.2 is 23 degrees.
  const float t = random.uniform(-.2f, .2f);
  const float cosine = (1 - t * t) / (1 + t * t), sine = 2 * t / (1 + t * t);
  const Point centre = random.point(kImageSide / 2 - 5, kImageSide / 2 + 5);
  const auto map = [&](Point p) {
    const float x = size * stretch * (p.x + shear * p.y), y = size / stretch * p.y;
    return Point{centre.x + cosine * x - sine * y, centre.y + sine * x + cosine * y};
  };
  std::vector<Segment> strokes;
  for (const Segment& stroke : drawing.strokes)
    strokes.push_back({map(stroke.from), map(stroke.to)});
  return strokes;
}

}  // namespace

std::string_view glyph_name(int glyph_class) {
  return drawings()[static_cast<std::size_t>(glyph_class)].name;
}

void draw_glyph(std::uint64_t seed, Split split, std::uint64_t index,
                std::span<std::uint8_t> image) {
  constexpr int kNumDistractors = 4, kFirstBlob = 2;  // two strokes, then two blobs
  constexpr float kNoise = .06f;
  ImageRandom random(seed, split, index);
  Planes planes;
  const Colour top = random.colour();
  Colour bottom = random.colour();
  for (int c = 0; c < kNumChannels; ++c) bottom[c] = top[c] + .4f * (bottom[c] - top[c]);
  paint_background(planes, top, bottom);
  for (int i = 0; i < kNumDistractors; ++i) {
    const Point from = random.point(0, kImageSide), by = random.point(-6, 6);
    const Segment stroke{from, i < kFirstBlob ? Point{from.x + by.x, from.y + by.y} : from};
    const float radius = i < kFirstBlob ? .8f : random.uniform(1, 3);
    paint(planes, {&stroke, 1}, radius, random.colour());
  }
  const Drawing& drawing = drawings()[static_cast<std::size_t>(glyph_class(index))];
  const std::vector<Segment> strokes = place(drawing, random);
  const float radius = random.uniform(.8f, 1.5f);
  paint(planes, strokes, radius, visible_colour(random, top, bottom));
  for (int i = 0; i < kImageBytes; ++i) {
    const float value = std::clamp(planes[i] + kNoise * random.noise(), 0.0f, 1.0f);
    image[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value * 255 + .5f);
  }
}

GlyphSet draw_glyphs(std::uint64_t seed, Split split, std::int64_t num_images, int num_threads) {
  GlyphSet set;
  set.images.resize(static_cast<std::size_t>(num_images) * kImageBytes);
  set.labels.resize(static_cast<std::size_t>(num_images));
  const auto draw_share = [&](int thread) {
    for (std::int64_t i = thread; i < num_images; i += num_threads) {
      const auto index = static_cast<std::size_t>(i);
      set.labels[index] = glyph_class(index);
      draw_glyph(seed, split, index,
                 std::span(set.images).subspan(index * kImageBytes, kImageBytes));
    }
  };
  std::vector<std::jthread> threads;
  for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(draw_share, thread);
  draw_share(0);
  threads.clear();  // joins
  return set;
}

DataSet generate_glyphs(const SampleLimits& limits, std::uint64_t seed, int num_threads) {
  const auto draw = [&](Split split, std::int64_t count) -> SampleBytes {
    GlyphSet set = draw_glyphs(seed, split, count, num_threads);
    return {.values = std::move(set.images), .labels = std::move(set.labels), .count = count};
  };
  return {.name = "glyphs",
          .shape = {.channels = kNumChannels,
                    .height = kImageSide,
                    .width = kImageSide,
                    .classes = kNumClasses},
          .centring = Centring::kEachImage,
          .training = draw(Split::kTraining, limits.training > 0 ? limits.training : 8000),
          .test = draw(Split::kTest, limits.test > 0 ? limits.test : 2000)};
}

// ---- grammar ------------------------------------------------------------------------------------

namespace {

class Speaker {
 public:
  Speaker(std::uint64_t seed, std::uint32_t stream)
      : key0_(static_cast<std::uint32_t>(seed)),
        key1_(static_cast<std::uint32_t>(seed >> 32)),
        counter_{0, stream, kPurpose, 0} {}

  // "the old fox that the dogs see runs [near (a bird)] and says 'blue' : blue."
  std::string sentence() {
    text_.clear();
    const bool plural = one_in(2);
    noun_phrase(plural, 0);
    verb(plural);
    if (one_in(2)) place(0);
    if (one_in(3)) {
      const std::string_view word = pick(kAdjectives);
      text_ += std::string(plural ? " and say '" : " and says '").append(word).append("'");
      if (one_in(2)) place(0);
      text_ += std::string(" : ").append(word);
    }
    text_.erase(0, 1);  // each word begins with a space
    return text_ + ".\n";
  }

 private:
  static constexpr std::uint32_t kPurpose = 0x74786574;  // apart from the images of the same seed
  static constexpr std::array<std::string_view, 8> kNouns = {"fox",  "dog",  "bird",  "child",
                                                             "king", "tree", "river", "teacher"};
  static constexpr std::array<std::string_view, 8> kPlurals = {
      "foxes", "dogs", "birds", "children", "kings", "trees", "rivers", "teachers"};
  static constexpr std::array<std::string_view, 6> kVerbs = {"run",  "sing",  "wait",
                                                             "fall", "sleep", "wonder"};
  static constexpr std::array<std::string_view, 4> kActions = {"see", "follow", "know", "like"};
  static constexpr std::array<std::string_view, 8> kAdjectives = {"old",  "small", "blue", "quiet",
                                                                  "wild", "green", "tall", "kind"};
  static constexpr std::array<std::string_view, 4> kPlaces = {"near", "behind", "under", "without"};

  std::uint32_t word() {
    if (used_ == words_.size()) {
      words_ = philox(counter_, key0_, key1_);
      if (++counter_[0] == 0) ++counter_[3];
      used_ = 0;
    }
    return words_[used_++];
  }
  std::uint32_t below(std::uint32_t count) {
    return static_cast<std::uint32_t>(std::uint64_t{word()} * count >> 32);
  }
  bool one_in(std::uint32_t count) { return below(count) == 0; }
  template <std::size_t size>
  std::string_view pick(const std::array<std::string_view, size>& words) {
    return words[below(size)];
  }
  void say(std::string_view word) { text_.append(" ").append(word); }

  void noun_phrase(bool plural, int depth) {
    say(plural ? "the" : one_in(2) ? "a" : "the");
    while (one_in(3)) say(pick(kAdjectives));
    say(plural ? pick(kPlurals) : pick(kNouns));
    if (depth < 2 && one_in(4)) {
      const bool other = one_in(2);
      say("that");
      noun_phrase(other, depth + 1);
      say(std::string(pick(kActions)).append(other ? "" : "s"));
    }
  }

  void verb(bool plural) { say(std::string(pick(kVerbs)).append(plural ? "" : "s")); }

  void place(int depth) {
    const bool round = one_in(2);
    text_ += round ? " (" : " [";
    text_ += pick(kPlaces);
    noun_phrase(one_in(2), 1);
    if (depth < 2 && one_in(3)) place(depth + 1);
    text_ += round ? ")" : "]";
  }

  std::uint32_t key0_, key1_;
  PhiloxWords counter_, words_{};
  std::size_t used_ = 4;
  std::string text_;
};

}  // namespace

std::string grammar_text(std::uint64_t seed, std::uint32_t stream, std::size_t size) {
  Speaker speaker(seed, stream);
  std::string text;
  while (text.size() < size) text += speaker.sentence();
  return text;
}

DataSet generate_grammar(const SampleLimits& limits, std::uint64_t seed) {
  const auto draw = [&](Split split, std::int64_t count) {
    const auto size = static_cast<std::size_t>(count * kTextContext + 1);
    return cut_text(grammar_text(seed, static_cast<std::uint32_t>(split), size), count);
  };
  return {.name = "grammar",
          .shape = {.is_text = true, .classes = kTextVocabulary},
          .training = draw(Split::kTraining, limits.training > 0 ? limits.training : 4000),
          .test = draw(Split::kTest, limits.test > 0 ? limits.test : 400)};
}

}  // namespace slimgrad::trainer
