// The record of a training run: lines of JSON, one object each. Here is the one description of
// their fields and the one function that writes a line; slimgrad-train calls it, and Python through
// an op. docs/runs.md says what the fields mean.
#ifndef SLIMGRAD_ARRAYS_MEASURE_RUN_RECORD_H_
#define SLIMGRAD_ARRAYS_MEASURE_RUN_RECORD_H_

#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/tensor_stats.h>

namespace slimgrad {

// The `schema` of a config line. A field that changes its meaning raises it.
inline constexpr int kRecordSchema = 1;

struct RecordField {
  std::string kind;  // of line: "config", "epoch", ...
  std::string name;
  std::string type;  // "int", "float" (also a whole number), "str", "bool", "list" or "dict"
  bool is_required;  // else a line may lack it
};

// In the order in which a line has them.
const std::vector<RecordField>& record_fields();

// A line, without its end: the fields in the order of record_fields(), no spaces, each number with
// the fewest digits that give it back, ASCII. `fields` is an object of JSON, in any order, that has
// "kind"; any value may be null, for a number that does not exist. Throws InvalidArgument for a
// kind or field that is not described, a value of another type and a required field that is
// missing.
std::string record_line(std::string_view fields);

// The fields of a histogram line that say what was measured, as an object of JSON. Bins run from
// the octave of the smallest magnitude to that of the largest.
std::string histogram_fields(const TensorStats& stats);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_MEASURE_RUN_RECORD_H_
