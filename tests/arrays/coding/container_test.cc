// Containers, whole and damaged. Files made by the program are in tests/python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <slimgrad/payload.h>

#include <cstring>
#include <string>

#include "arrays/coding/container_index.h"

namespace slimgrad {
namespace {

using Bytes = std::vector<std::uint8_t>;

// A container of these payloads under these descriptions.
Bytes container_of(ContainerIndex index, const std::vector<Bytes>& payloads) {
  for (std::size_t i = 0; i < payloads.size(); ++i) index.entries[i].num_bytes = payloads[i].size();
  Bytes file = container_header(index);
  for (const Bytes& payload : payloads) file.insert(file.end(), payload.begin(), payload.end());
  return file;
}

const float kFloats[] = {1, -2, 3, 4, 5, 6};
const std::int8_t kOthers[16] = {7, 8, 9};

Bytes sample() {
  const ContainerIndex index = {{{{"format", "pt"}, {"\"odd\"\n", "\xc3\xa4"}}},
                                {{"weight", "F32", {2, 3}}, {"steps", "I64", {2}}}};
  return container_of(
      index, {encode({kFloats, DType::kFloat32, {2, 3}}), encode({kOthers, DType::kInt8, {16}})});
}

// A container whose index is this text.
Bytes with_index(const std::string& text) {
  const Bytes payload = encode({text.data(), DType::kInt8, {text.size()}});
  Bytes file = {0x8d, 'S', 'G', 'C', 1, 0, 0, 0};
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::uint8_t>(payload.size() >> (8 * i)));
  file.insert(file.end(), payload.begin(), payload.end());
  return file;
}

TEST(Container, GivesBackWhatWasPutIn) {
  const Bytes file = sample();
  EXPECT_TRUE(is_container(file));
  const ContainerIndex index = parse_container(file);
  ASSERT_TRUE(index.metadata);
  EXPECT_EQ((*index.metadata)[1], std::pair(std::string("\"odd\"\n"), std::string("\xc3\xa4")));
  ASSERT_EQ(index.entries.size(), 2u);
  EXPECT_EQ(index.entries[0].name, "weight");
  EXPECT_EQ(index.entries[1].type, "I64");
  EXPECT_EQ(index.entries[1].offset + index.entries[1].num_bytes, file.size());
  for (const ContainerEntry& entry : index.entries)
    check_entry(entry, inspect(std::span(file).subspan(entry.offset, entry.num_bytes)));
  const Bytes values =
      decode(std::span(file).subspan(index.entries[0].offset, index.entries[0].num_bytes));
  EXPECT_EQ(std::memcmp(values.data(), kFloats, sizeof kFloats), 0);
}

TEST(Container, MayBeEmpty) {
  const Bytes file = container_header({});
  const ContainerIndex index = parse_container(file);
  EXPECT_FALSE(index.metadata);
  EXPECT_TRUE(index.entries.empty());
  EXPECT_FALSE(is_container(encode({kFloats, DType::kFloat32, {6}})));
  EXPECT_FALSE(is_container({}));
}

// Reads everything; false if there is a PayloadError.
bool is_whole(std::span<const std::uint8_t> file) {
  try {
    for (const ContainerEntry& entry : parse_container(file).entries) {
      const auto payload = file.subspan(entry.offset, entry.num_bytes);
      check_entry(entry, inspect(payload));
      decode(payload);
    }
    return true;
  } catch (const PayloadError&) {
    return false;
  }
}

TEST(Container, EveryCutAndEveryChangedBitIsFound) {
  const Bytes file = sample();
  EXPECT_TRUE(is_whole(file));
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_FALSE(is_whole(std::span(file).first(size))) << size;
  for (std::size_t i = 0; i < 8 * file.size(); ++i) {
    Bytes damaged = file;
    damaged[i / 8] ^= 1 << i % 8;
    EXPECT_FALSE(is_whole(damaged)) << "bit " << i;
  }
  Bytes longer = file;
  longer.push_back(0);
  EXPECT_FALSE(is_whole(longer));
}

TEST(Container, RefusesIndicesThatNobodyWrites) {
  EXPECT_NO_THROW(parse_container(with_index(R"({"metadata":null,"tensors":[]})")));
  const std::string entry = R"({"name":"a","dtype":"F32","shape":[],"bytes":0})";
  EXPECT_NO_THROW(parse_container(with_index(R"({"metadata":{},"tensors":[)" + entry + "]}")));
  for (
      const std::string& text : std::vector<std::string>{
          "",
          "{}",
          "[]",
          "null",
          "{\"metadata\":null}",
          "{\"tensors\":[]}",
          R"({"metadata":null,"tensors":[]}x)",
          R"({"metadata":null,"tensors":[],"more":1})",
          R"({"metadata":null,"metadata":null,"tensors":[]})",
          R"({"metadata":null,"tensors":[],"tensors":[]})",
          R"({"metadata":{"a":1},"tensors":[]})",
          R"({"metadata":{"a":{}},"tensors":[]})",
          R"({"metadata":{"a":"","b":"","a":""},"tensors":[]})",
          R"({"metadata":[],"tensors":[]})",
          R"({"metadata":null,"tensors":{}})",
          R"({"metadata":null,"tensors":[1]})",
          R"({"metadata":null,"tensors":[{}]})",
          R"({"metadata":null,"tensors":[[]]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F32","shape":[-1],"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F32","shape":[1.5],"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F4","shape":[0,9223372036854775808],"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F32","shape":[[]],"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F32","shape":1,"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":1,"dtype":"F32","shape":[],"bytes":0}]})",
          R"({"metadata":null,"tensors":[{"name":"a","dtype":"F32","shape":[],"bytes":1}]})",
          R"({"metadata":null,"tensors":[{"name":"a","name":"b","dtype":"","shape":[],"bytes":0}]})",
          R"({"metadata":null,"tensors":[)" + entry + "," + entry + "]}",
          "{\"metadata\":null,\"tensors\":[{\"name\":\"\xff\"}]}",
          std::string(60'000, '['),
      })
    EXPECT_THROW(parse_container(with_index(text)), PayloadError) << text.substr(0, 100);
}

// A few bytes may stand for a large index; nobody has such an index.
TEST(Container, AnIndexBeyondTheLimitIsNotDecoded) {
  const std::string spaces(kMaxIndexBytes + 1, ' ');
  const Bytes file = with_index(spaces);
  EXPECT_LT(file.size(), 16384u);
  try {
    parse_container(file);
    FAIL();
  } catch (const PayloadError& error) {
    EXPECT_EQ(error.code(), PayloadErrorCode::kTooLarge);
  }
}

PayloadErrorCode error_of(const Bytes& file, std::uint64_t max_bytes) {
  try {
    parse_container(file, max_bytes);
  } catch (const PayloadError& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return {};
}

// Metadata of so many pairs, with values of so many characters.
ContainerIndex with_metadata(int pairs, std::size_t length) {
  ContainerIndex index;
  index.metadata.emplace();
  for (int i = 0; i < pairs; ++i)
    index.metadata->emplace_back(std::to_string(i), std::string(length, 'a'));
  return index;
}

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// Neither text that is long for its bytes, nor strings that are large for their text.
TEST(Container, AnIndexIsBoundByTheFileAndByTheCaller) {
  const std::string nothing = R"({"metadata":null,"tensors":[]})";
  EXPECT_EQ(error_of(with_index(nothing + std::string(1 << 20, ' ')), kNoLimit),
            PayloadErrorCode::kTooLarge);
  EXPECT_NO_THROW(parse_container(with_index(nothing + std::string(60'000, ' ')), 0));
  const Bytes many = container_header(with_metadata(100'000, 0));
  EXPECT_EQ(parse_container(many).metadata->size(), 100'000u);
  EXPECT_EQ(error_of(many, 1'000'000), PayloadErrorCode::kTooLarge);  // of 1.2 MB text
  EXPECT_EQ(error_of(many, 5'000'000), PayloadErrorCode::kTooLarge);  // and 6.9 MB in memory
  EXPECT_NO_THROW(parse_container(many, 7'000'000));
  std::string pairs;
  for (int i = 0; i < 10'000; ++i) pairs += R"("":"",)";
  EXPECT_EQ(error_of(with_index(R"({"metadata":{)" + pairs + R"("":""},"tensors":[]})"), 0),
            PayloadErrorCode::kTooLarge);
}

TEST(Container, WhatIsWrittenIsReadHoweverWellItsIndexIsCoded) {
  for (const auto& [pairs, length] : {std::pair(1, 5'000'000), {100'000, 0}, {3000, 1000}}) {
    const ContainerIndex index = with_metadata(pairs, static_cast<std::size_t>(length));
    EXPECT_EQ(parse_container(container_header(index)).metadata, index.metadata);
  }
}

TEST(Container, EntriesAreComparedWithPayloads) {
  const PayloadInfo floats = inspect(encode({kFloats, DType::kFloat32, {2, 3}}));
  const PayloadInfo others = inspect(encode({kOthers, DType::kInt8, {16}}));
  EXPECT_NO_THROW(check_entry({"a", "F32", {2, 3}}, floats));
  EXPECT_NO_THROW(check_entry({"a", "I64", {2, 1}}, others));
  EXPECT_NO_THROW(check_entry({"a", "F4", {32}}, others));  // not known how many bytes that has
  for (const ContainerEntry& wrong : std::vector<ContainerEntry>{
           {"a", "F32", {3, 2}}, {"a", "F16", {2, 3}}, {"a", "I32", {2, 3}}})
    EXPECT_THROW(check_entry(wrong, floats), PayloadError);
  for (const ContainerEntry& wrong : std::vector<ContainerEntry>{
           {"a", "I64", {3}}, {"a", "I64", {1ull << 62, 4}}, {"a", "I64", {0}}, {"a", "F32", {4}}})
    EXPECT_THROW(check_entry(wrong, others), PayloadError);
  const PayloadInfo none = inspect(encode({kOthers, DType::kInt8, {0}}));
  EXPECT_NO_THROW(check_entry({"a", "I64", {0, 1ull << 59}}, none));
  for (const ContainerEntry& wrong : std::vector<ContainerEntry>{
           {"a", "I64", {0, 1ull << 63}}, {"a", "I64", {1ull << 62, 4, 0}}, {"a", "I64", {}}})
    EXPECT_THROW(check_entry(wrong, none), PayloadError);
}

TEST(Container, WritesNothingThatItDoesNotRead) {
  EXPECT_THROW(container_header({{}, {{"a", "F32", {}}, {"a", "F32", {}}}}), InvalidArgument);
  EXPECT_THROW(container_header({{}, {{"\xff", "F32", {}}}}), InvalidArgument);
  EXPECT_THROW(container_header({{}, {{"a", "I64", std::vector<std::uint64_t>(33, 1)}}}),
               InvalidArgument);
  EXPECT_THROW(container_header({{}, {{"a", "I64", {0, 1ull << 63}}}}), InvalidArgument);
  EXPECT_THROW(container_header({{{{"a", "1"}, {"a", "2"}}}, {}}), InvalidArgument);
}

}  // namespace
}  // namespace slimgrad
