#include "arrays/measure/run_record.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <utility>

#include <slimgrad/error.h>
#include <slimgrad/measure.h>

namespace slimgrad {
namespace {

std::string message_of(const char* fields) {
  try {
    record_line(fields);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunRecord, OrdersFieldsAndWritesNumbersOneWay) {
  EXPECT_EQ(record_line(R"({"scale": 1e-5, "layer": "a", "sparsity": 1.0, "step": 3,
                            "cosine": 0.1000, "run": 1, "kind": "layers", "epoch": null})"),
            R"({"kind":"layers","run":1,"epoch":null,"step":3,"layer":"a","sparsity":1.0,)"
            R"("cosine":0.1,"scale":1e-05})");
  EXPECT_EQ(record_line(R"({"kind": "config", "seed": 18446744073709551615, "model": "\u00fc"})"),
            R"({"kind":"config","model":"\u00fc","seed":18446744073709551615})");
}

TEST(RunRecord, IsUnchangedWhenItIsWrittenAgain) {
  const std::string line =
      record_line(R"({"kind": "bits", "layer": "a", "tensor": "weight_gradient", "step": 1,
                      "huffman": {"counted": 2.5}, "rans": {"counted": 2.25, "normal": 3}})");
  EXPECT_EQ(record_line(line), line);
}

TEST(RunRecord, RefusesWhatIsNotDescribed) {
  EXPECT_EQ(message_of("[1]"), "[record_line] expected an object of JSON with a kind, got [1]");
  EXPECT_EQ(message_of(R"({"kind": "end")"),
            R"([record_line] expected an object of JSON with a kind, got {"kind": "end")");
  EXPECT_EQ(message_of(R"({"kind": "ends"})"),
            "[record_line] expected a kind of line that docs/runs.md has, got 'ends'");
  EXPECT_EQ(
      message_of(R"({"kind": "epoch", "step": 1, "lost": 2})"),
      "[record_line] expected fields that docs/runs.md has for a line of kind epoch, got 'lost'");
  EXPECT_EQ(message_of(R"({"kind": "epoch", "step": 1.5})"),
            "[record_line] expected step of a line of kind epoch to be int, got 1.5");
  EXPECT_EQ(message_of(R"({"kind": "epoch", "loss": 1})"),
            "[record_line] expected step of a line of kind epoch to be int, got none");
  EXPECT_EQ(message_of(R"({"kind": "epoch", "step": 1, "loss": "low"})"),
            R"([record_line] expected loss of a line of kind epoch to be float, got "low")");
}

TEST(RunRecord, DescribesEveryFieldOnceWithAKnownType) {
  const std::set<std::string> types = {"int", "float", "str", "bool", "list", "dict"};
  std::set<std::pair<std::string, std::string>> seen;
  for (const RecordField& field : record_fields()) {
    EXPECT_TRUE(types.contains(field.type)) << field.kind << '.' << field.name;
    EXPECT_TRUE(seen.insert({field.kind, field.name}).second) << field.kind << '.' << field.name;
  }
}

TEST(RunRecord, AHistogramBeginsWithAnOctave) {
  // 1.5 is the fifth of the eight bins from 1 to 2; 2.25 is the second from 2 to 4.
  const std::string text = histogram_fields(measure(std::array{0.0f, 1.5f, -1.5f, 2.25f}));
  EXPECT_NE(text.find(R"("values":4,"zeros":1,"nonfinite":0)"), text.npos) << text;
  EXPECT_NE(text.find(R"("first_exponent":0,"bins_per_octave":8,"counts":[0,0,0,0,2,0,0,0,0,1]})"),
            text.npos)
      << text;
  // Subnormal numbers are of the first octave.
  EXPECT_NE(histogram_fields(measure(std::array{1e-40f})).find(R"("first_exponent":-127)"),
            std::string::npos);
  EXPECT_NE(histogram_fields(measure(std::array{0.0f}))
                .find(R"("first_exponent":null,"bins_per_octave":8,"counts":[]})"),
            std::string::npos);
}

}  // namespace
}  // namespace slimgrad
