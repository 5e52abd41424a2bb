// resume_gate(): which settings differ, what follows from them, and the state that comes of it.
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include <slimgrad/gate.h>

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
std::string text_of(std::string_view name) { return std::string(1, '\'').append(name) + '\''; }

std::string bits_text(int bits) { return bits == 0 ? "none" : std::to_string(bits); }
std::string format_text(const std::optional<FloatFormat>& format) {
  return format ? text_of(std::string_view(format->name())) : "none";
}
// As users say it: the inverse of the grid's scale, which is what is rounded twice then.
std::string loss_scale_text(double fixed_scale) {
  return fixed_scale > 0 ? text_of(1 / fixed_scale, 12) : "none";
}
std::string schedule_text(const std::vector<SparsityAt>& schedule) {
  if (schedule.empty()) return "none";
  std::string text;
  for (const auto& [call, sparsity] : schedule)
    text += (text.empty() ? "{" : ", ") + text_of(call) + ": " + text_of(sparsity);
  return text + "}";
}

// Collects the settings that differ, and whether something follows from one that does.
class Comparison {
 public:
  Comparison(const GateState& ours, const GateState& saved) {
    compare_sparsity(ours, saved);
    compare_scale(ours, saved);
    compare_treatment(ours.options.settings, saved.options.settings);
    const GateOptions &a = ours.options, &b = saved.options;
    // What the treatment in force was chosen from; and what only the passes to come follow from.
    treatment_ |= differ("sample", text_of(a.sample_size), text_of(b.sample_size));
    differ("min_elements", text_of(a.min_elements), text_of(b.min_elements));
    differ("refresh", text_of(a.refresh_every), text_of(b.refresh_every));
    differ("warmup", text_of(a.warmup), text_of(b.warmup));
  }

  bool sparsity() const { return sparsity_; }
  bool scale() const { return scale_; }
  bool treatment() const { return treatment_ || sparsity_ || scale_; }
  const std::vector<std::string>& words() const { return words_; }

 private:
  // Settings are equal if their texts are: these have all that there is to a setting.
  bool differ(const char* name, const std::string& ours, const std::string& saved) {
    if (ours == saved) return false;
    words_.push_back(std::string(name) + " " + ours + ", the state has " + saved);
    return true;
  }

  void compare_sparsity(const GateState& ours, const GateState& saved) {
    const GateOptions &a = ours.options, &b = saved.options;
    sparsity_ |= differ("sparsity", text_of(ours.target), text_of(saved.target));
    sparsity_ |= differ("schedule", schedule_text(a.schedule), schedule_text(b.schedule));
    sparsity_ |= differ("allocation", text_of(objective_name(a.allocation)),
                        text_of(objective_name(b.allocation)));
  }

  void compare_scale(const GateState& ours, const GateState& saved) {
    const GateOptions &a = ours.options, &b = saved.options;
    // A dynamic loss scale was found on the grid of its format: on another one it begins anew.
    scale_ |= differ("bits", bits_text(a.settings.bits), bits_text(b.settings.bits));
    scale_ |= differ("format", format_text(a.settings.format), format_text(b.settings.format));
    if (ours.asked_scale != saved.asked_scale) {
      scale_ = true;
      differ("loss scale", loss_scale_text(ours.asked_scale), loss_scale_text(saved.asked_scale)) ||
          differ("fixed scale", text_of(ours.asked_scale), text_of(saved.asked_scale));
    }
    scale_ |= differ("dynamic loss scale", text_of(a.dynamic_scale), text_of(b.dynamic_scale));
  }

  void compare_treatment(const GradientSettings& a, const GradientSettings& b) {
    treatment_ |=
        differ("kind", text_of(prune_kind_name(a.prune)), text_of(prune_kind_name(b.prune)));
    treatment_ |= differ("method", text_of(method_name(a.method)), text_of(method_name(b.method)));
    treatment_ |= differ("split method", text_of(split_method_name(a.split)),
                         text_of(split_method_name(b.split)));
    treatment_ |= differ("scale", text_of(scale_method_name(a.scale_method)),
                         text_of(scale_method_name(b.scale_method)));
    treatment_ |=
        differ("rounding", text_of(rounding_name(a.rounding)), text_of(rounding_name(b.rounding)));
    treatment_ |= differ("underflow", text_of(underflow_name(a.underflow)),
                         text_of(underflow_name(b.underflow)));
  }

  std::vector<std::string> words_;
  bool sparsity_ = false, scale_ = false, treatment_ = false;
};

}  // namespace

std::vector<std::string> resume_gate(GateState& gate, const GateState& saved) {
  check_gate_state(saved, "resume_gate");
  const Comparison comparison(gate, saved);
  GateState resumed = saved;
  resumed.options = gate.options;
  resumed.options.seed = saved.options.seed;
  resumed.target = gate.target;
  resumed.asked_scale = gate.asked_scale;

  GradientSettings& settings = resumed.options.settings;
  settings.sparsity = comparison.sparsity()
                          ? scheduled_sparsity(gate.options.schedule, saved.calls, gate.target)
                          : saved.options.settings.sparsity;
  settings.fixed_scale = comparison.scale() ? gate.asked_scale : saved.options.settings.fixed_scale;
  if (comparison.scale()) resumed.good_steps = 0;
  resumed.due |= comparison.treatment();
  gate = resumed;
  return comparison.words();
}

}  // namespace slimgrad
