// The .npy reader against files made here byte by byte, and against damage.
#include "program/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>

namespace slimgrad::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Value>
std::string bytes_of_values(std::initializer_list<Value> values) {
  std::string bytes;
  for (const Value value : values) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof value);
  }
  return bytes;
}

std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::string text = dictionary;
  while ((8 + length_bytes + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t i = 0; i < length_bytes; ++i)
    file += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return file + text + data;
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& fortran_order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape +
         ", }";
}

class NpyTest : public ::testing::Test {
 protected:
  NpyTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            ("slimgrad-npy-" + std::string(info->name()) + "-" + std::to_string(getpid()));
  }
  ~NpyTest() override { std::filesystem::remove_all(path_); }

  FloatTensor open(const std::string& bytes, bool bfloat16 = false) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return open_npy(path_, bfloat16);
  }

  // The error of opening these bytes, or "" if there is none.
  std::string error_of(const std::string& bytes, bool bfloat16 = false) {
    try {
      open(bytes, bfloat16);
    } catch (const NpyError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path path_;
  Progress silent_{"reading", 0, true};
};

TEST_F(NpyTest, ReadsEveryVersionAndOrder) {
  const std::string data = bytes_of_values<float>({1, -2, 3.5f, 0, 5, 6});
  for (const int version : {1, 2, 3})
    for (const char* order : {"False", "True"}) {
      const FloatTensor file = open(npy(dictionary("<f4", "(2, 3)", order), data, version));
      EXPECT_EQ(file.type, DType::kFloat32);
      EXPECT_THAT(file.shape, ElementsAre(2, 3));
      EXPECT_THAT(file.read_floats(silent_).values, ElementsAre(1, -2, 3.5f, 0, 5, 6));
      EXPECT_THAT(file.read_doubles(silent_), ElementsAre(1, -2, 3.5, 0, 5, 6));
    }
}

TEST_F(NpyTest, ReadsScalarsEmptyArraysAndThePythonTwoSpelling) {
  EXPECT_EQ(open(npy(dictionary("<f4", "()"), bytes_of_values<float>({7}))).num_values(), 1u);
  EXPECT_EQ(open(npy(dictionary("<f4", "(0, 5)"), "")).num_values(), 0u);
  // Empty, however large the rest of the shape claims to be.
  EXPECT_EQ(open(npy(dictionary("<f4", "(18446744073709551615, 2, 0)"), "")).num_values(), 0u);
  EXPECT_EQ(open(npy(dictionary("<f4", "(1L, 2L)"), std::string(8, 'x'))).num_values(), 2u);
  EXPECT_EQ(open(npy("{\"shape\":(2,),\"descr\":\"<f4\",\"fortran_order\":True}", "12345678"))
                .num_values(),
            2u);
}

TEST_F(NpyTest, CountsWhatFloat32CannotHold) {
  const double inf = std::numeric_limits<double>::infinity();
  const FloatTensor file = open(npy(
      dictionary("<f8", "(7,)"), bytes_of_values<double>({0.1, 1e39, -1e300, 1e-60, 0, inf, 2})));
  const FloatValues read = file.read_floats(silent_);
  EXPECT_EQ(read.overflowed, 2u);
  EXPECT_EQ(read.underflowed, 1u);
  EXPECT_THAT(read.values, ElementsAre(0.1f, HUGE_VALF, -HUGE_VALF, 0, 0, HUGE_VALF, 2));
  EXPECT_THAT(file.read_doubles(silent_), ElementsAre(0.1, 1e39, -1e300, 1e-60, 0, inf, 2));
}

TEST_F(NpyTest, ReadsBothHalves) {
  const std::string data = bytes_of_values<std::uint16_t>({0x3c00, 0xc000, 0x0001});
  EXPECT_THAT(open(npy(dictionary("<f2", "(3,)"), data)).read_floats(silent_).values,
              ElementsAre(1, -2, 0x1p-24f));
  const std::string bfloat = bytes_of_values<std::uint16_t>({0x3f80, 0xc000, 0x0001});
  for (const char* descr : {"<u2", "<V2", "|V2"}) {
    EXPECT_THAT(open(npy(dictionary(descr, "(3,)"), bfloat), true).read_floats(silent_).values,
                ElementsAre(1, -2, 0x1p-133f));
    EXPECT_THAT(error_of(npy(dictionary(descr, "(3,)"), bfloat)), HasSubstr("--bfloat16"));
  }
}

TEST_F(NpyTest, RefusesOtherTypes) {
  for (const char* descr : {"<i4", "|b1", "<c8", "|O", "<U3", "|S4", "<M8[ns]", "", "f4", "<f16"})
    EXPECT_THAT(error_of(npy(dictionary(descr, "(1,)"), "1234")), HasSubstr("expected float16"))
        << descr;
  EXPECT_THAT(error_of(npy(dictionary(">f4", "(1,)"), "1234")), HasSubstr("little-endian"));
  EXPECT_THAT(
      error_of(npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234")),
      HasSubstr("record type"));
}

TEST_F(NpyTest, RefusesAbsurdSizesWithoutAllocating) {
  for (const char* shape : {"(4294967296, 4294967296)", "(18446744073709551616,)",
                            "(4611686018427387905,)", "(9223372036854775807,)", "(1000000000,)"})
    EXPECT_NE(error_of(npy(dictionary("<f4", shape), "1234")), "") << shape;
  for (const char* shape : {"(-1,)", "(1", "(,)", "(1)", "1", "(1.0,)", "(1,,)", "[1]", "(0x1,)"})
    EXPECT_THAT(error_of(npy(dictionary("<f4", shape), "1234")), HasSubstr("damaged")) << shape;
  // A header that claims to be longer than any array of numbers needs.
  EXPECT_THAT(error_of(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14)),
              HasSubstr("4294967295 bytes"));
}

TEST_F(NpyTest, RefusesOddDictionaries) {
  const std::string data = "1234";
  EXPECT_THAT(error_of(npy("{'descr': '<f4', 'shape': (1,), }", data)), HasSubstr("no 'fortran"));
  EXPECT_THAT(error_of(npy("{'shape': (1,), 'shape': (1,), }", data)), HasSubstr("twice"));
  EXPECT_THAT(error_of(npy("{'shape': (1,), 'more': 1, }", data)), HasSubstr("unknown key"));
  EXPECT_THAT(error_of(npy(dictionary("<f4", "(1,)") + "x", data)), HasSubstr("text after"));
  EXPECT_THAT(error_of(npy(dictionary("<f4", "(1,)", "Maybe"), data)), HasSubstr("True or False"));
  EXPECT_THAT(error_of(npy("", data)), HasSubstr("damaged"));
}

TEST_F(NpyTest, RefusesEveryTruncationAndEveryTail) {
  const std::string whole = npy(dictionary("<f8", "(2, 2)"), bytes_of_values<double>({1, 2, 3, 4}));
  ASSERT_EQ(error_of(whole), "");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(error_of(whole.substr(0, length)), "") << length;
  EXPECT_THAT(error_of(whole + '\0'), HasSubstr("1 bytes follow"));
}

// Any damage is either an error or a file that can be read; ASan watches the rest.
TEST_F(NpyTest, SurvivesChangedBytes) {
  const std::string whole = npy(dictionary("<f4", "(2, 2)"), bytes_of_values<float>({1, 2, 3, 4}));
  const std::string characters = "{}()[],:'\"0129L \\<>f\n\xff\x01";
  for (std::size_t i = 0; i < whole.size() - 16; ++i)
    for (const char c : characters + '\0') {
      std::string damaged = whole;
      damaged[i] = c;
      try {
        const FloatTensor file = open(damaged, true);
        EXPECT_EQ(file.read_floats(silent_).values.size(), file.num_values());
      } catch (const NpyError& error) {
        EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      }
    }
}

TEST_F(NpyTest, NamesFilesThatCannotBeRead) {
  EXPECT_THAT(error_of(""), HasSubstr("not an .npy file"));
  std::filesystem::remove_all(path_);
  EXPECT_THROW(open_npy(path_, false), NpyError);
  std::filesystem::create_directory(path_);
  EXPECT_THROW(open_npy(path_, false), NpyError);
}

}  // namespace
}  // namespace slimgrad::program
