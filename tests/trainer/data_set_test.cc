#include "trainer/data_set.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/error.h>

#include "trainer/generated_data.h"

namespace slimgrad::trainer {
namespace {

namespace fs = std::filesystem;

class DataSetTest : public testing::Test {
 protected:
  void SetUp() override {
    // Both names: suites have tests of the same name, which may run at the same time.
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::path(testing::TempDir()) / (std::string(test.test_suite_name()) + "." + test.name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  DataSet open(const std::string& kind, SampleLimits limits = {}) {
    return open_data(kind + folder_.string(), limits, 1, 1);
  }
  // The message of the refusal.
  template <typename Open>
  static std::string refusal(Open open) {
    try {
      open();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  }

  fs::path folder_;
};

std::string record(int label, int pixel) {
  return std::string(1, static_cast<char>(label)) + std::string(3072, static_cast<char>(pixel));
}

class Cifar10 : public DataSetTest {
 protected:
  void write_all() {
    for (int batch = 1; batch <= 5; ++batch)
      write("data_batch_" + std::to_string(batch) + ".bin",
            record(batch, 10 * batch) + record(0, 0));
    write("test_batch.bin", record(9, 200));
  }
};

TEST_F(Cifar10, ReadsItsFilesInOrder) {
  write_all();
  const DataSet data = open("cifar10:");
  EXPECT_EQ(data.shape, (SampleShape{.channels = 3, .height = 32, .width = 32, .classes = 10}));
  EXPECT_EQ(data.training.count, 10);
  EXPECT_EQ(data.training.labels, (std::vector<std::int64_t>{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  EXPECT_EQ(data.training.values.at(2 * 3072), 20);
  EXPECT_EQ(data.test.labels, std::vector<std::int64_t>{9});
  EXPECT_EQ(data.test.values.size(), 3072u);
  EXPECT_TRUE(data.augmented);
}

TEST_F(Cifar10, TakesAsManyAsWanted) {
  write_all();
  fs::remove(folder_ / "data_batch_5.bin");  // is not needed
  const DataSet data = open("cifar10:", {.training = 3});
  EXPECT_EQ(data.training.labels, (std::vector<std::int64_t>{1, 0, 2}));
  EXPECT_NE(hash_of(data.training), hash_of(open("cifar10:", {.training = 4}).training));
  write("data_batch_5.bin", record(5, 5));
  EXPECT_EQ(refusal([&] { open("cifar10:", {.training = 10}); }),
            "--train-size: expected at most the 9 samples in the data, got 10");
}

TEST_F(Cifar10, RefusesWhatIsMissingOrDamaged) {
  EXPECT_NE(refusal([&] { open("cifar10:"); }).find("data_batch_1.bin"), std::string::npos);
  write_all();
  write("data_batch_3.bin", record(1, 1).substr(1));
  EXPECT_NE(refusal([&] { open("cifar10:"); }).find("data_batch_3.bin: expected whole records"),
            std::string::npos);
  write("data_batch_3.bin", "");
  EXPECT_NE(refusal([&] { open("cifar10:"); }).find("got 0 bytes"), std::string::npos);
  write("data_batch_3.bin", record(10, 1));
  EXPECT_NE(refusal([&] { open("cifar10:"); }).find("got label 10"), std::string::npos);
}

std::string idx(std::initializer_list<int> shape, const std::string& bytes) {
  std::string text("\0\0\x08", 3);
  text += static_cast<char>(shape.size());
  for (const int length : shape)
    text += std::string("\0\0", 2) + static_cast<char>(length >> 8) + static_cast<char>(length);
  return text + bytes;
}

class Idx : public DataSetTest {
 protected:
  void write_all() {
    write("train-images-idx3-ubyte", idx({3, 2, 4}, "abcdefghijklmnopqrstuvwx"));
    write("train-labels-idx1-ubyte", idx({3}, std::string("\0\1\2", 3)));
    write("t10k-images-idx3-ubyte", idx({1, 2, 4}, "12345678"));
    write("t10k-labels-idx1-ubyte", idx({1}, "\3"));
  }
};

TEST_F(Idx, ReadsImagesAndLabels) {
  write_all();
  const DataSet data = open("idx:", {.training = 2});
  EXPECT_EQ(data.shape, (SampleShape{.channels = 1, .height = 2, .width = 4, .classes = 4}));
  EXPECT_EQ(std::string(data.training.values.begin(), data.training.values.end()),
            "abcdefghijklmnop");
  EXPECT_EQ(data.training.labels, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(data.test.labels, std::vector<std::int64_t>{3});
  EXPECT_FALSE(data.augmented);
}

TEST_F(Idx, RefusesWhatIsMissingOrDamaged) {
  const std::string images = idx({3, 2, 4}, "abcdefghijklmnopqrstuvwx");
  const auto refused = [&](const std::string& part) {
    const std::string message = refusal([&] { open("idx:"); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused("no such file");
  write("train-images-idx3-ubyte.gz", "x");
  refused("expected an unpacked file");
  write_all();
  for (const std::size_t cut : {0, 3, 15, 16, 39}) {
    write("train-images-idx3-ubyte", images.substr(0, cut));
    refused("train-images-idx3-ubyte: expected");
  }
  write("train-images-idx3-ubyte", images + "x");
  refused("expected 24 bytes behind the header, got 25");
  write("train-images-idx3-ubyte", idx({65535, 65535, 65535}, "a"));
  refused("bytes behind the header, got 1");
  write("train-images-idx3-ubyte", idx({0, 2, 4}, ""));
  refused("train-images-idx3-ubyte");
  write_all();
  write("train-labels-idx1-ubyte", idx({2}, "ab"));
  refused("expected 3 labels, one for each image, got 2");
  write_all();
  write("t10k-images-idx3-ubyte", idx({1, 4, 2}, "12345678"));
  refused("of the size of the training images, got 4 x 2");
}

TEST_F(DataSetTest, TextIsCutIntoWindowsThatMeet) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i % 251);
  write("text", text);
  const DataSet data = open_data("text:" + (folder_ / "text").string(), {}, 1, 1);
  EXPECT_TRUE(data.shape.is_text);
  EXPECT_EQ(data.shape.classes, 256);
  // 2700 bytes hold 21 windows of 128, each with the byte behind it; 300 hold two.
  EXPECT_EQ(data.training.count, 21);
  EXPECT_EQ(data.test.count, 2);
  const auto width = static_cast<std::size_t>(data.shape.bytes());
  EXPECT_EQ(data.training.values.size(), 21 * width);
  EXPECT_EQ(data.training.values.at(width - 1), data.training.values.at(width));
  EXPECT_EQ(data.training.values.at(width), static_cast<std::uint8_t>(text[128]));
  EXPECT_EQ(data.test.values.front(), static_cast<std::uint8_t>(text[2700]));
  write("short", text.substr(0, 1000));
  EXPECT_NE(refusal([&] {
              open_data("text:" + (folder_ / "short").string(), {}, 1, 1);
            }).find("expected at least 1290 bytes, got 1000"),
            std::string::npos);
}

TEST_F(DataSetTest, RefusesUnknownData) {
  for (const char* what : {"", "cifar", "cifar10", "glyphs:", "text:", "text:/no/such/file"})
    EXPECT_NE(refusal([&] { open_data(what, {}, 1, 1); }).find("--data: "), std::string::npos)
        << what;
}

// What was generated may not change unnoticed.
TEST(Grammar, IsTheSameEverywhere) {
  const std::string text = grammar_text(1, 1, 100);
  EXPECT_EQ(text.substr(0, text.find('\n')), "a king sleeps.");
  EXPECT_EQ(text, grammar_text(1, 1, text.size()));
  EXPECT_NE(text, grammar_text(2, 1, 100).substr(0, text.size()));
  EXPECT_NE(text, grammar_text(1, 2, 100).substr(0, text.size()));
}

TEST(Grammar, ClosesBracketsInOrder) {
  std::string open;
  int brackets = 0;
  for (const char c : grammar_text(1, 1, 20000)) {
    if (c == '(' || c == '[') open += c, ++brackets;
    if (c == ')' || c == ']') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), c == ')' ? '(' : '[');
      open.pop_back();
    }
    if (c == '\n') {
      EXPECT_TRUE(open.empty());
    }
  }
  EXPECT_GT(brackets, 100);
}

TEST(Grammar, HasTheSizeThatIsWanted) {
  const DataSet data = generate_grammar({.training = 7, .test = 3}, 1);
  EXPECT_EQ(data.training.count, 7);
  EXPECT_EQ(data.test.count, 3);
}

constexpr SampleShape kShape{.channels = 2, .height = 12, .width = 10, .classes = 2};

std::vector<std::uint8_t> image() {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(kShape.bytes()));
  std::iota(values.begin(), values.end(), std::uint8_t{1});  // 1 to 240: none is black
  return values;
}

std::string augmented(std::uint32_t epoch, std::uint64_t index) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(kShape.bytes()), 255);
  crop_and_flip(image(), kShape, 7, epoch, index, out);
  return {out.begin(), out.end()};
}

// By brute force: the image in the middle of a black one, cut out at every place, both ways.
TEST(Augmentation, IsAWindowOfThePaddedImage) {
  std::map<std::string, std::tuple<int, int, bool>> windows;
  const auto values = image();
  for (int down = -4; down <= 4; ++down)
    for (int right = -4; right <= 4; ++right)
      for (const bool mirrored : {false, true}) {
        std::string window(values.size(), '\0');
        for (int c = 0; c < 2; ++c)
          for (int y = 0; y < 12; ++y)
            for (int x = 0; x < 10; ++x) {
              const int from_y = y + down, from_x = (mirrored ? 9 - x : x) + right;
              if (from_y >= 0 && from_y < 12 && from_x >= 0 && from_x < 10)
                window[static_cast<std::size_t>((c * 12 + y) * 10 + x)] = static_cast<char>(
                    values[static_cast<std::size_t>((c * 12 + from_y) * 10 + from_x)]);
            }
        windows[window] = {down, right, mirrored};
      }
  ASSERT_EQ(windows.size(), 162u);
  std::map<std::tuple<int, int, bool>, int> seen;
  constexpr int kDraws = 8100;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const auto found = windows.find(augmented(1, i));
    ASSERT_NE(found, windows.end());
    ++seen[found->second];
  }
  EXPECT_EQ(seen.size(), 162u);
  // 50 each, with a standard deviation of 7.
  for (const auto& [where, count] : seen) EXPECT_NEAR(count, 50, 35);
}

TEST(Augmentation, FollowsFromSeedEpochAndIndex) {
  EXPECT_EQ(augmented(1, 5), augmented(1, 5));
  std::set<std::string> all;
  for (std::uint32_t epoch = 1; epoch <= 8; ++epoch) all.insert(augmented(epoch, 5));
  EXPECT_GT(all.size(), 5u);
}

}  // namespace
}  // namespace slimgrad::trainer
