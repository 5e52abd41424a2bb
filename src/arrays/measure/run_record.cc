#include "arrays/measure/run_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "arrays/decide/gate_fields.h"
#include "base/check.h"

namespace slimgrad {
namespace {

using Json = nlohmann::ordered_json;

// NAME:TYPE, with a ! if the field is required; {gate}: the settings of a gate. Every line begins
// with kCommon.
constexpr const char* kCommon = "kind:str! run:int ";
constexpr std::pair<const char*, const char*> kKinds[] = {
    {"config",
     "schema:int version:str commit:str machine:str model:str parameters:int norm:str "
     "nonlinearity:str activations:str saved:str saved_group:int saved_rounding:str "
     "saved_min_elements:int fake_int4:bool data:str data_hash:str sample:str training_samples:int "
     "test_samples:int augment:bool gradients:str {gate} targets:list cap:float "
     "sparsity_schedule:list sparse_way:str epochs:int batch:int optimizer:str "
     "rate:float momentum:float weight_decay:float schedule:str seed:int threads:int probe_at:list "
     "probe:list"},
    {"epoch",
     "epoch:int step:int! rate:float loss:float accuracy:float test_loss:float test_accuracy:float "
     "seconds:float test_seconds:float samples_per_second:float gradient_bytes:int "
     "compressed_gradient_bytes:float activation_values:int plain_saved_bytes:int saved_bytes:int"},
    {"layers",
     "epoch:int step:int! layer:str! passes:int values:int compressed_values:int log_std:float "
     "nonfinite:int bits_per_value:float sparsity:float sparsity_wanted:float "
     "worst_sparsity_miss:float cosine:float relative_error:float bias:float threshold:float "
     "saturated_passes:int format:str scale:float calls:int at_threshold:float way:str "
     "break_even:float chosen_by:str"},
    {"histogram",
     "epoch:int step:int! layer:str! tensor:str! values:int! zeros:int! nonfinite:int! "
     "log_mean:float! log_std:float! max_abs:float! mean_abs:float! mean_square:float! "
     "first_exponent:int! bins_per_octave:int! counts:list!"},
    {"fit", "epoch:int step:int! layer:str! tensor:str! families:dict!"},
    {"bits",
     "epoch:int step:int! layer:str! tensor:str! quantizer_bits:int entropy:float rans:dict "
     "huffman:dict"},
    {"end",
     "steps:int test_accuracy:float test_loss:float diverged:bool sparsity:float "
     "worst_sparsity_miss:float bits_per_value:float step_seconds:float mean_step_seconds:float "
     "median_step_seconds:float resumed:int peak_memory_bytes:int weights:str"},
};

std::vector<RecordField> parse_fields() {
  std::vector<RecordField> fields;
  for (const auto& [kind, names] : kKinds) {
    std::istringstream words(std::string(kCommon) + names);
    for (std::string word; words >> word;) {
      if (word == "{gate}") {
        for (const GateSetting& setting : gate_settings())
          fields.push_back({kind, setting.option.name, setting.is_number() ? "int" : "str", false});
        continue;
      }
      const bool is_required = word.ends_with('!');
      const std::size_t colon = word.find(':');
      fields.push_back({.kind = kind,
                        .name = word.substr(0, colon),
                        .type = word.substr(colon + 1, word.size() - colon - 1 - is_required),
                        .is_required = is_required});
    }
  }
  return fields;
}

bool has_type(const Json& value, const std::string& type) {
  if (value.is_null()) return true;
  if (type == "int") return value.is_number_integer();
  if (type == "float") return value.is_number();
  if (type == "str") return value.is_string();
  if (type == "bool") return value.is_boolean();
  return type == "list" ? value.is_array() : value.is_object();
}

}  // namespace

const std::vector<RecordField>& record_fields() {
  static const std::vector<RecordField> fields = parse_fields();
  return fields;
}

std::string record_line(std::string_view fields) {
  const Json given = Json::parse(fields, nullptr, /*allow_exceptions=*/false);
  check(given.is_object() && given.contains("kind") && given.at("kind").is_string(), "record_line",
        "an object of JSON with a kind", fields);
  const auto kind = given.at("kind").get<std::string>();
  check(std::ranges::any_of(kKinds, [&](const auto& known) { return kind == known.first; }),
        "record_line", "a kind of line that docs/runs.md has", '\'', kind, '\'');
  auto line = Json::object();
  for (const RecordField& field : record_fields()) {
    if (field.kind != kind) continue;
    const auto value = given.find(field.name);
    const std::string expected = field.name + " of a line of kind " + kind + " to be " + field.type;
    if (value == given.end()) {
      check(!field.is_required, "record_line", expected, "none");
      continue;
    }
    check(has_type(*value, field.type), "record_line", expected, value->dump());
    line[field.name] = *value;
  }
  for (const auto& [name, value] : given.items())
    check(line.contains(name), "record_line",
          "fields that docs/runs.md has for a line of kind " + kind, '\'', name, '\'');
  return line.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true);
}

std::string histogram_fields(const TensorStats& stats) {
  // Octave 0 of the bins begins at zero and holds the subnormal numbers; octave k begins at
  // 2^(k - kBias).
  constexpr int kBinsPerOctave = 8, kBias = 127;
  const auto& counts = stats.histogram.counts;
  const auto is_filled = [](std::uint64_t count) { return count > 0; };
  const auto begin = std::ranges::find_if(counts, is_filled);
  const auto last = std::find_if(counts.rbegin(), counts.rend(), is_filled).base();
  const bool is_empty = begin == counts.end();
  const auto octave = is_empty ? 0 : (begin - counts.begin()) / kBinsPerOctave;
  const Json bins =
      is_empty ? Json::array()
               : Json(std::vector<std::uint64_t>(counts.begin() + octave * kBinsPerOctave, last));
  return Json{{"values", stats.count},
              {"zeros", stats.zeros},
              {"nonfinite", stats.nonfinite},
              {"log_mean", stats.log_mean},
              {"log_std", stats.log_std},
              {"max_abs", stats.max_abs},
              {"mean_abs", stats.mean_abs},
              {"mean_square", stats.mean_square},
              {"first_exponent", is_empty ? Json() : Json(octave - kBias)},
              {"bins_per_octave", kBinsPerOctave},
              {"counts", bins}}
      .dump();
}

}  // namespace slimgrad
