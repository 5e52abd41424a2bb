#include "program/table.h"

#include <gtest/gtest.h>

#include <limits>

namespace slimgrad::program {
namespace {

TEST(Table, AlignsColumns) {
  Table table({{"name", Align::kLeft}, {"value"}, {"", Align::kLeft}});
  table.add({"a", "1000000", "best"});
  table.add({"longer", "2"});
  EXPECT_EQ(table.text(),
            "name      value\n"
            "------  -------  ----\n"
            "a       1000000  best\n"
            "longer        2\n");
}

TEST(Table, WithoutTitlesHasNoHeader) {
  Table table({{"", Align::kLeft}, {""}});
  table.add({"count", "12"});
  table.add({"max", "3.5"});
  EXPECT_EQ(table.text(), "count   12\nmax    3.5\n");
}

TEST(Table, Numbers) {
  EXPECT_EQ(number(1.0 / 3), "0.333333");
  EXPECT_EQ(number(-1e-30), "-1e-30");
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(percent(0.85), "85.0 %");
}

}  // namespace
}  // namespace slimgrad::program
