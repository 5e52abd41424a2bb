#include "trainer/records.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include <slimgrad/error.h>

namespace slimgrad::trainer {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RunFile, KeepsWhatACheckpointKnowsOf) {
  const std::string path = testing::TempDir() + "run_file_test.jsonl";
  std::uint64_t known = 0;
  {
    RunFile file(path, 0);
    file.write("one");
    known = file.bytes();
    file.write("written after the checkpoint");
  }
  RunFile(path, known).write("two");
  EXPECT_EQ(contents(path), "one\ntwo\n");
  RunFile(path, 0).write("new");
  EXPECT_EQ(contents(path), "new\n");
  EXPECT_THROW(RunFile(path, 5), InvalidArgument);
  std::remove(path.c_str());
  EXPECT_THROW(RunFile(path, 5), InvalidArgument);
}

TEST(RunFile, WritesNothingWithoutAPath) { RunFile("", 0).write("nowhere"); }

TEST(RunFile, RefusesAFolderThatIsNotThere) {
  EXPECT_THROW(RunFile("/no/such/folder/run.jsonl", 0), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad::trainer
