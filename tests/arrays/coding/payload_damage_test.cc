// Payloads that are not what an encoder wrote: each must be a PayloadError, or decode to something,
// and never anything else. The sanitizers watch.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "arrays/coding/payload_samples.h"

namespace slimgrad {
namespace {

// The error's code, or nothing if the payload decodes.
std::optional<PayloadErrorCode> error_of(const Bytes& payload) {
  try {
    decode(payload);
  } catch (const PayloadError& error) {
    return error.code();
  }
  return std::nullopt;
}

// The same with the checksum compared last, into memory for what the payload was before.
std::optional<PayloadErrorCode> late_error_of(const Bytes& payload, std::size_t num_bytes) {
  Bytes out(num_bytes);
  try {
    decode_into(payload, out);
  } catch (const PayloadError& error) {
    return error.code();
  }
  return std::nullopt;
}

TEST(PayloadDamage, EveryTruncationIsDetected) {
  for (const NamedPayload& sample : payloads_of_every_kind(100))
    for (std::size_t size = 0; size < sample.payload.size(); ++size) {
      const Bytes cut(sample.payload.begin(), sample.payload.begin() + static_cast<long>(size));
      const auto error = error_of(cut);
      EXPECT_TRUE(error.has_value()) << sample.name << ' ' << size;
      EXPECT_EQ(late_error_of(cut, inspect(sample.payload).num_bytes()), error) << sample.name;
    }
}

TEST(PayloadDamage, EveryTruncationIsDetectedBehindTheChecksum) {
  for (const NamedPayload& sample : payloads_of_every_kind(3000)) {
    const std::size_t step = sample.payload.size() < 4000 ? 1 : 7;
    for (std::size_t size = 16; size < sample.payload.size(); size += step) {
      Bytes cut(sample.payload.begin(), sample.payload.begin() + static_cast<long>(size));
      repair_checksum(cut);
      EXPECT_TRUE(error_of(cut).has_value()) << sample.name << ' ' << size;
    }
  }
}

TEST(PayloadDamage, EverySingleBitFlipIsDetected) {
  for (const NamedPayload& sample : payloads_of_every_kind(200)) {
    Bytes payload = sample.payload;
    const std::size_t num_bytes = inspect(payload).num_bytes();
    for (std::size_t bit = 0; bit < 8 * payload.size(); ++bit) {
      payload[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      const auto error = error_of(payload);
      EXPECT_TRUE(error.has_value()) << sample.name << " bit " << bit;
      EXPECT_EQ(late_error_of(payload, num_bytes), error) << sample.name << " bit " << bit;
      payload[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    }
    EXPECT_EQ(late_error_of(payload, num_bytes), std::nullopt);
    EXPECT_FALSE(error_of(payload).has_value());
  }
}

TEST(PayloadDamage, TrailingBytesAreDetected) {
  for (NamedPayload& sample : payloads_of_every_kind(100)) {
    sample.payload.push_back(0);
    EXPECT_EQ(error_of(sample.payload), PayloadErrorCode::kBadChecksum);
    repair_checksum(sample.payload);
    EXPECT_EQ(error_of(sample.payload), PayloadErrorCode::kTrailingBytes) << sample.name;
  }
}

// With a right checksum the decoder sees the damage itself. It may decode to other values; it must
// not crash, and what it allocates stays within what blocks of 2^20 values can be.
TEST(PayloadDamage, EveryByteMayBeAnythingBehindTheChecksum) {
  std::mt19937 random(1);
  for (const NamedPayload& sample : payloads_of_every_kind(5000)) {
    Bytes payload = sample.payload;
    const std::size_t num_bytes = payload.size() - 8;
    for (std::size_t i = 0; i < 600; ++i) {
      const std::size_t at = i < 60 ? i % num_bytes : random() % num_bytes;
      const std::uint8_t before = payload[at];
      payload[at] = static_cast<std::uint8_t>(random());
      repair_checksum(payload);
      error_of(payload);
      payload[at] = before;
    }
  }
}

// Every block takes at least two bytes: of nothing no values can be announced.
TEST(PayloadDamage, BlocksWithoutBytesAreRefused) {
  const std::vector<float> values(3 << 12, 0.f);
  Bytes payload = encode(view(values, DType::kFloat32),
                         {.kind = PayloadKind::kUniform, .scale = 1, .block_log2 = 12});
  const PayloadInfo info = inspect(payload);
  ASSERT_EQ(info.block_bytes.size(), 3u);
  std::size_t body = 0;
  for (const std::uint32_t size : info.block_bytes) body += size;
  // The index lies before the blocks, the checksum behind them.
  const std::size_t index = payload.size() - 8 - body - 4 * info.block_bytes.size();
  payload.erase(payload.begin() + static_cast<std::ptrdiff_t>(index + 12),
                payload.begin() + static_cast<std::ptrdiff_t>(index + 12 + info.block_bytes[0]));
  std::fill_n(payload.begin() + static_cast<std::ptrdiff_t>(index), 4, std::uint8_t{0});
  repair_checksum(payload);
  EXPECT_EQ(error_of(payload), PayloadErrorCode::kBadHeader);
}

TEST(PayloadDamage, WhatIsTooLargeIsRefusedBeforeItIsAllocated) {
  const std::vector<float> values(1000, 1.f);
  const Bytes payload = encode(view(values, DType::kFloat32));
  EXPECT_EQ(decode(payload, 4000).size(), 4000u);
  try {
    decode(payload, 3999);
    FAIL();
  } catch (const PayloadError& error) {
    EXPECT_EQ(error.code(), PayloadErrorCode::kTooLarge);
  }
}

struct Field {
  const char* name;
  std::size_t offset;
  std::uint8_t value;
  PayloadErrorCode expected;
};

TEST(PayloadDamage, WrongFieldsAreNamed) {
  // Offsets as in docs/format.md: a uniform payload of shape {5000}, whose length takes two bytes.
  const std::vector<float> values = gradient(5000);
  const Bytes payload =
      encode(view(values, DType::kFloat32), {.kind = PayloadKind::kUniform, .block_log2 = 12});
  using enum PayloadErrorCode;
  for (const Field& field :
       std::vector<Field>{{"magic", 0, 'S', kBadMagic},       {"version", 4, 2, kBadVersion},
                          {"version", 4, 0, kBadVersion},     {"kind", 5, 5, kBadHeader},
                          {"kind", 5, 0, kTruncated},         {"type", 6, 5, kBadHeader},
                          {"type", 6, 3, kBadHeader},         {"dimensions", 7, 33, kBadHeader},
                          {"order", 7, 0x81, kBadHeader},     {"length", 9, 0x00, kBadHeader},
                          {"length", 9, 0x7f, kTruncated},    {"bits", 10, 1, kBadHeader},
                          {"bits", 10, 9, kBadHeader},        {"bits", 10, 2, kBadBlock},
                          {"scale", 14, 0x80, kBadHeader},    {"block size", 16, 11, kBadHeader},
                          {"block size", 16, 21, kBadHeader}, {"index", 19, 1, kTruncated},
                          {"index", 20, 0xff, kTruncated},    {"method", 25, 9, kBadBlock}}) {
    Bytes wrong = payload;
    wrong[field.offset] = field.value;
    repair_checksum(wrong);
    EXPECT_EQ(error_of(wrong), field.expected) << field.name << ' ' << int{field.value};
  }
}

TEST(PayloadDamage, AbsurdSizesAllocateNothing) {
  // 2^59 bytes of one value each, in a payload of 40 bytes; and lengths whose product wraps to 1.
  for (const std::vector<std::uint8_t>& shape : std::vector<std::vector<std::uint8_t>>{
           {1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
           {2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40},
           {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}})
    for (const std::uint8_t kind : {0, 1, 2, 3, 4}) {
      Bytes payload = {0x8d, 'S', 'G', 'P', 1, kind, 0};
      payload.insert(payload.end(), shape.begin(), shape.end());
      payload.resize(payload.size() + 30, 20);
      repair_checksum(payload);
      EXPECT_TRUE(error_of(payload).has_value());
    }
}

TEST(PayloadDamage, RandomBytesAreNoPayload) {
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    Bytes bytes(random() % 300);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    EXPECT_TRUE(error_of(bytes).has_value());
    if (bytes.size() < 16) continue;
    const std::uint8_t start[8] = {
        0x8d, 'S', 'G', 'P', 1, static_cast<std::uint8_t>(i % 5), static_cast<std::uint8_t>(i % 3),
        1};
    std::copy_n(start, 8, bytes.begin());
    bytes[8] = static_cast<std::uint8_t>(random() % 128);
    repair_checksum(bytes);
    error_of(bytes);
  }
}

}  // namespace
}  // namespace slimgrad
