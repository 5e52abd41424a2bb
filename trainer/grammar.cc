#include "trainer/grammar.h"

#include <array>
#include <string_view>

#include "base/rng.h"
#include "trainer/data_set.h"
#include "trainer/glyphs.h"

namespace slimgrad::trainer {
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
