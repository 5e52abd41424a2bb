#include "arrays/coding/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arrays/coding/payload_samples.h"

namespace slimgrad {
namespace {

using testing::HasSubstr;

template <typename Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const PayloadError& error) {
    return error.what();
  }
  return "";
}

TEST(Pieces, ATableOfSizesAndThePayloads) {
  Bytes bytes(piece_table_bytes(3) + 6);
  const std::vector<std::size_t> sizes = {1, 0, 5};
  write_piece_table(sizes, bytes.data());
  const auto payloads = read_piece_table(bytes, 3);
  ASSERT_EQ(payloads.size(), 3u);
  EXPECT_EQ(payloads[0].size(), 1u);
  EXPECT_EQ(payloads[1].size(), 0u);
  EXPECT_EQ(payloads[2].data(), bytes.data() + 17);
  EXPECT_TRUE(read_piece_table(Bytes(4), 0).empty());

  EXPECT_THAT(refusal([&] { read_piece_table(bytes, 2); }), HasSubstr("expected 2 pieces, got 3"));
  EXPECT_THAT(refusal([&] { read_piece_table(bytes, 1'000'000); }), HasSubstr("too few to list"));
  EXPECT_THAT(refusal([&] { read_piece_table({}, 0); }), HasSubstr("too few to list"));
  bytes.push_back(0);
  EXPECT_THAT(refusal([&] { read_piece_table(bytes, 3); }), HasSubstr("behind the last piece"));
  bytes.resize(bytes.size() - 2);
  EXPECT_THAT(refusal([&] { read_piece_table(bytes, 3); }),
              HasSubstr("piece 2: expected at most 4 bytes, got 5"));
}

TEST(Pieces, ValuesAsTheyAreArePayloadsToo) {
  const std::vector<float> values = gradient(100);
  const TensorView tensor = view(values, DType::kFloat32);
  Bytes bytes(encode_bound(tensor));
  bytes.resize(store_raw(tensor, bytes));
  EXPECT_EQ(inspect(bytes).kind, PayloadKind::kRaw);
  EXPECT_EQ(decode(bytes), bytes_of_values(values));
  EXPECT_THROW(store_raw(tensor, std::span(bytes).first(100)), InvalidArgument);
}

TEST(Pieces, NothingButWhatWasAgreedOn) {
  const std::vector<float> values = gradient(5000);
  const auto info_of = [&](const EncodeOptions& options) {
    return inspect(encode(view(values, DType::kFloat32), options));
  };
  const PayloadInfo uniform = info_of({.kind = PayloadKind::kUniform, .bits = 4});
  const ExpectedPiece expected = {DType::kFloat32, 5000, PayloadKind::kUniform, 4, 4, 3};
  const auto refused = [&](const PayloadInfo& info, const ExpectedPiece& wanted) {
    return refusal([&] { check_piece(info, wanted, 7); });
  };
  EXPECT_EQ(refused(uniform, expected), "");
  EXPECT_EQ(refused(info_of({}), expected), "");  // lossless, for NaN
  ExpectedPiece other = expected;
  other.bits = 5;
  EXPECT_THAT(refused(uniform, other),
              HasSubstr("piece 7: expected uniform 5 bits of float32 [5000], got uniform 4 bits"));
  other = expected;
  other.num_values = 4999;
  EXPECT_THAT(refused(uniform, other), HasSubstr("[4999], got"));
  other = expected;
  other.dtype = DType::kBFloat16;
  EXPECT_THAT(refused(uniform, other), HasSubstr("bfloat16"));
  other = expected;
  other.kind = PayloadKind::kRaw;
  EXPECT_THAT(refused(uniform, other), HasSubstr("expected raw"));
  EXPECT_THAT(refused(info_of({}), other), HasSubstr("got lossless"));
  const PayloadInfo floats = info_of({.kind = PayloadKind::kFloat, .format = FloatFormat(5, 2)});
  other = expected;
  other.kind = PayloadKind::kFloat;
  EXPECT_THAT(refused(floats, other), HasSubstr("expected float 1-4-3 of"));
  EXPECT_THAT(refused(floats, expected), HasSubstr("got float 1-5-2"));
}

}  // namespace
}  // namespace slimgrad
