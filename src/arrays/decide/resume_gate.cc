// resume_gate(): which settings differ, what follows from them, and the state that comes of it.
#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <slimgrad/gate.h>

#include "arrays/decide/gate_fields.h"
#include "arrays/decide/gate_pass.h"

namespace slimgrad {
namespace {

std::string text_of(double value, int digits = 17) {
  std::array<char, 40> text;
  // Without a number of digits: the fewest that mean this very number.
  const auto end = digits < 17 ? std::to_chars(text.begin(), text.end(), value,
                                               std::chars_format::general, digits)
                               : std::to_chars(text.begin(), text.end(), value);
  return {text.begin(), end.ptr};
}
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(bool value) { return value ? "True" : "False"; }
std::string text_of(int bits) { return bits == 0 ? "none" : std::to_string(bits); }
std::string in_quotes(std::string_view name) { return std::string(1, '\'').append(name) + '\''; }
template <typename Enum>
requires std::is_enum_v<Enum> std::string text_of(Enum value) {
  return in_quotes(EnumNames<Enum>::name(value));
}
std::string text_of(const std::optional<FloatFormat>& format) {
  return format ? in_quotes(format->name()) : "none";
}
std::string text_of(const std::vector<SparsityAt>& schedule) {
  if (schedule.empty()) return "none";
  std::string text;
  for (const auto& [call, sparsity] : schedule)
    text += (text.empty() ? "{" : ", ") + text_of(call) + ": " + text_of(sparsity);
  return text + "}";
}
// As users say it: the inverse of the grid's scale, which is what is rounded twice then.
std::string loss_scale_text(double fixed_scale) {
  return fixed_scale > 0 ? text_of(1 / fixed_scale, 12) : "none";
}

// Collects the settings that differ, and whether something follows from one that does.
class Comparison {
 public:
  Comparison(const GateState& ours, const GateState& saved) {
    visit_gate_fields(
        [&](const GateField& field, const auto& a, const auto& b) {
          if (*field.setting != '\0') compare(field, a, b);
        },
        ours, saved);
    std::ranges::stable_sort(words_, {}, &Words::first);
  }

  bool changes(Follows what) const {
    return std::ranges::find(words_, what, &Words::first) != words_.end();
  }
  std::vector<std::string> words() const {
    std::vector<std::string> words;
    for (const auto& [follows, text] : words_) words.push_back(text);
    return words;
  }

 private:
  using Words = std::pair<Follows, std::string>;

  // Settings are equal if their texts are: these have all that there is to a setting. A scale is
  // said as a loss scale, unless two differ in what that leaves out.
  template <typename T>
  void compare(const GateField& field, const T& ours, const T& saved) {
    if constexpr (std::is_same_v<T, std::optional<std::uint64_t>> ||
                  std::is_same_v<T, std::optional<Quantizer>>) {
      return;  // never settings
    } else {
      const char* name = field.setting;
      std::string a = text_of(ours), b = text_of(saved);
      if (a == b) return;
      if constexpr (std::is_same_v<T, double>) {
        if (field.follows == Follows::kScale) {
          const std::string loss_a = loss_scale_text(ours), loss_b = loss_scale_text(saved);
          if (loss_a == loss_b)
            name = "fixed scale";
          else
            a = loss_a, b = loss_b;
        }
      }
      words_.emplace_back(field.follows, std::string(name) + " " + a + ", the state has " + b);
    }
  }

  std::vector<Words> words_;
};

}  // namespace

std::vector<std::string> resume_gate(GateState& gate, const GateState& saved) {
  check_gate_state(saved, "resume_gate");
  const Comparison comparison(gate, saved);
  const bool other_sparsity = comparison.changes(Follows::kSparsity),
             other_scale = comparison.changes(Follows::kScale);
  GateState resumed = saved;
  resumed.options = gate.options;
  resumed.options.seed = saved.options.seed;
  resumed.target = gate.target;
  resumed.asked_scale = gate.asked_scale;

  GradientSettings& settings = resumed.options.settings;
  settings.sparsity = other_sparsity
                          ? scheduled_sparsity(gate.options.schedule, saved.calls, gate.target)
                          : saved.options.settings.sparsity;
  settings.fixed_scale = other_scale ? gate.asked_scale : saved.options.settings.fixed_scale;
  if (other_scale) resumed.good_steps = 0;
  resumed.due |= other_sparsity || other_scale || comparison.changes(Follows::kTreatment);
  gate = resumed;
  return comparison.words();
}

}  // namespace slimgrad
