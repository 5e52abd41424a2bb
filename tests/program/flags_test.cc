#include "program/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace slimgrad::program {
namespace {

bool parse(CommandLine& line, std::vector<std::string> words) {
  words.insert(words.begin(), "tool");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return line.parse(static_cast<int>(argv.size()), argv.data());
}

struct Tool {
  CommandLine line{"tool", "Does things.", "tool 1.2"};
  int bits = 3;
  std::optional<double> mean;
  std::vector<int> widths;
  std::vector<std::string> files, names;
  std::uint64_t seed = 0;
  bool all = false;

  Tool() {
    Flags flags = line.flags();
    const Option range = flags.option("--bits", bits, "Bits").show_default().range(1, 5);
    flags.option("--mean", mean, "Mean").value_name("M").excludes(range);
    flags.option("--seed", seed, "Seed");
    flags.option("--names", names, "Names").one_at_a_time();
    flags.option("--widths", widths, "Widths").separator(',');
    flags.option("FILE", files, "Files").required();
    flags.flag("--all", all, "All");
  }
};

TEST(Flags, SetsTheVariables) {
  Tool tool;
  EXPECT_TRUE(parse(tool.line, {"a", "--mean", "-2.5", "--widths", "4,5", "--all", "b"}));
  EXPECT_EQ(tool.bits, 3);
  EXPECT_EQ(tool.mean, -2.5);
  EXPECT_THAT(tool.widths, testing::ElementsAre(4, 5));
  EXPECT_THAT(tool.files, testing::ElementsAre("a", "b"));
  EXPECT_TRUE(tool.all);
}

TEST(Flags, TakesOneValueAtATime) {
  Tool tool;
  EXPECT_TRUE(parse(tool.line, {"--names", "x", "a", "--names", "y", "b"}));
  EXPECT_THAT(tool.names, testing::ElementsAre("x", "y"));
  EXPECT_THAT(tool.files, testing::ElementsAre("a", "b"));
}

TEST(Flags, TakesTheWholeRangeOfUnsignedNumbers) {
  Tool tool;
  EXPECT_TRUE(parse(tool.line, {"a", "--seed", "18446744073709551615"}));
  EXPECT_EQ(tool.seed, 18446744073709551615u);
}

TEST(Flags, RefusesWhatWasNotDeclared) {
  const std::vector<std::vector<std::string>> bad = {
      {},                                   // no FILE
      {"a", "--bits", "6"},                 // outside the range
      {"a", "--bits", "many"},              // no number
      {"a", "--bits", "2", "--mean", "1"},  // not both
      {"a", "--what"},                      // unknown
      {"a", "--seed", "-1"},                // wraps around
      {"a", "--seed", "1.5"},
  };
  for (const auto& words : bad) {
    Tool tool;
    EXPECT_THROW(parse(tool.line, words), UsageError) << testing::PrintToString(words);
  }
}

TEST(Flags, PrintsHelpAndVersionInsteadOfGoingOn) {
  Tool tool;
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse(tool.line, {"--help"}));
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_EQ(help, tool.line.help());
  EXPECT_THAT(help, testing::HasSubstr("Does things."));
  EXPECT_THAT(help, testing::HasSubstr("--bits INT:INT in [1 - 5]=3"));
  EXPECT_THAT(help, testing::HasSubstr("--mean M"));
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse(tool.line, {"--version"}));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "tool 1.2\n");
}

TEST(Flags, KnowsWhichSubcommandWasGiven) {
  CommandLine line("tool", "", "1");
  const Flags first = line.subcommand("first", ""), second = line.subcommand("second", "");
  EXPECT_TRUE(parse(line, {"second"}));
  EXPECT_FALSE(first.parsed());
  EXPECT_TRUE(second.parsed());
}

}  // namespace
}  // namespace slimgrad::program
