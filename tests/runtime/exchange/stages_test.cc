// Messages of stages: every tensor comes back as it was sent; what no writer writes is refused by
// name. And boundaries between ranks that are threads; real processes over Gloo are in
// tests/python/distributed.
#include <slimgrad/stages.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/tensor_files.h>
#include <slimgrad/tensors.h>

#include "memory_group.h"
#include "runtime/exchange/stage_message.h"

namespace slimgrad {
namespace {

using exchange::BodyCoding;
using exchange::Header;
using exchange::MessageKind;
using exchange::plain_message;
using exchange::StageMessage;
using exchange::TensorHeader;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kBodyAt = static_cast<std::int64_t>(exchange::kHeaderBytes);
constexpr exchange::MessageName kName{MessageKind::kActivation, 3};

// What a reader makes of the bytes.
at::Tensor read(const at::Tensor& bytes) {
  const Header header = exchange::stage_header(bytes);
  return stage_tensor(header,
                      bytes.narrow(0, kBodyAt, static_cast<std::int64_t>(header.num_bytes)));
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const PayloadError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::pair<std::string, at::Tensor>> tensors() {
  at::manual_seed(0);
  const at::Tensor x = at::randn({4, 3, 5, 6});
  return {{"contiguous", x},
          {"channels_last", x.contiguous(at::MemoryFormat::ChannelsLast)},
          {"transposed", at::randn({7, 9}).t()},
          {"permuted", x.permute({3, 0, 2, 1})},
          {"with gaps", at::randn({8, 8}).slice(0, 0, 8, 2).slice(1, 1, 5)},
          {"expanded", at::randn({1, 4}).expand({5, 4})},
          {"one", at::tensor(2.5F)},
          {"empty", at::zeros({3, 0, 2})},
          {"bfloat16", x.to(at::kBFloat16)},
          {"float16", x.to(at::kHalf)},
          {"float64", x.to(at::kDouble)},
          {"int8", at::arange(-5, 7, at::kChar)},
          {"tokens", at::arange(12).reshape({3, 4})},
          {"mask", at::rand({3, 4}) > 0.5}};
}

TEST(StageMessages, ValuesTypesAndOrderInMemoryComeBack) {
  for (const auto& [name, x] : tensors())
    for (const bool lossless : {false, true}) {
      if (lossless && (x.scalar_type() == at::kLong || x.scalar_type() == at::kBool)) continue;
      const StageMessage message = lossless ? payload_message(x, kName) : plain_message(x, kName);
      const Header header = exchange::stage_header(message.bytes);
      EXPECT_EQ(header.number, 3) << name;
      EXPECT_EQ(header.tensor->shape, x.sizes().vec()) << name;
      const at::Tensor back = read(message.bytes);
      EXPECT_EQ(back.scalar_type(), x.scalar_type()) << name;
      EXPECT_TRUE(at::equal(back, x)) << name;
      if (name != "with gaps" && name != "expanded" && name != "empty") {
        EXPECT_EQ(back.strides(), x.strides()) << name;
      }
    }
}

// Also where the smallest value of the grid was rounded down by its type.
TEST(StageMessages, ValuesOfAGridComeBackExactlyAndShort) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({100, 60}) * 2;
  for (const char* const name : {"1-4-3", "1-2-3", "1-1-1", "1-4-1", "1-3-0", "1-1-6"})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const double scale : {0.25, 0.1, 1.0 / 3, 0.7, 0.0123, 1.1})
        for (const bool packed : {false, true}) {
          const FloatFormat format = FloatFormat::parse(name);
          const at::Tensor values =
              quantize(x.to(type), format, scale, Rounding::kStochastic, Underflow::kStochastic, 4);
          const StageMessage message = grid_message(values, kName, format, scale, packed);
          EXPECT_TRUE(at::equal(read(message.bytes), values)) << name << " " << scale;
          if (format.bits() == 8 && type == at::kBFloat16) continue;  // which runs values together
          EXPECT_TRUE(message.header.tensor->coding != BodyCoding::kPayload || type == at::kFloat);
          const double most = static_cast<double>(x.numel() * format.bits()) / 8;
          EXPECT_LE(static_cast<double>(message.header.num_bytes), packed ? most : 1.05 * most + 64)
              << name << " " << scale;
        }
}

TEST(StageMessages, EveryFlippedBitIsNoticed) {
  for (const StageMessage& message :
       {plain_message(at::randn({5, 4}), kName), payload_message(at::randn({5, 4}), kName)})
    for (std::int64_t i = 0; i < 8 * message.bytes.numel(); ++i) {
      at::Tensor damaged = message.bytes.clone();
      damaged.mutable_data_ptr<std::uint8_t>()[i / 8] ^= static_cast<std::uint8_t>(1 << i % 8);
      EXPECT_THROW(read(damaged), PayloadError) << i;
    }
}

TEST(StageMessages, AForgedHeaderIsRefusedByName) {
  const StageMessage plain = plain_message(at::randn({3, 4}), {MessageKind::kGradient, 5});
  struct Case {
    std::function<void(Header&)> change;
    const char* says;
  };
  const auto tensor = [](auto edit) { return [edit](Header& header) { edit(*header.tensor); }; };
  const auto codes = [](BodyCoding coding, double scale) {
    return [=](Header& header) {
      header.tensor->coding = coding;
      header.tensor->format = FloatFormat(4, 3);
      header.tensor->scale = scale;
    };
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const std::vector<Case> cases = {
      {[](Header& h) { h.num_bytes = std::uint64_t{1} << 50; },
       "announces 1125899906842624 bytes, plain, for float32 of shape [3, 4]"},
      {tensor([](TensorHeader& t) {
         t.shape = {std::int64_t{1} << 40, 4};
       }),
       "announces 48 bytes, plain"},
      {[](Header& h) {
         h.tensor->coding = BodyCoding::kPayload;
         h.num_bytes = 4000;
       },
       "announces 4000 bytes, payload"},
      {codes(BodyCoding::kPacked, 0), "codes with scale 0"},
      {codes(BodyCoding::kScaled, std::nan("")), "codes with scale nan"},
      {codes(BodyCoding::kScaled, std::numeric_limits<double>::infinity()), "codes with scale inf"},
      {[](Header& h) { h.tensor->coding = BodyCoding::kPacked; }, "a format that there is not"},
      {tensor([](TensorHeader& t) {
         t.order = {1, 1};
       }),
       "dimensions that no writer writes"},
      {tensor([](TensorHeader& t) {
         t.shape = {0, -1};
       }),
       "dimensions that no writer writes"},
      {tensor([](TensorHeader& t) {
         t.shape = {kHuge, 0};
       }),
       "dimensions that no writer writes"},
      {tensor([](TensorHeader& t) { t.coding = static_cast<BodyCoding>(77); }), "a code that no"},
      {tensor([](TensorHeader& t) { t.type = at::kComplexFloat; }), "a code that no writer writes"},
      {[](Header& h) { h.kind = static_cast<MessageKind>(77); }, "a kind that no writer writes"},
  };
  for (const Case& forged : cases) {
    Header header = plain.header;
    forged.change(header);
    const at::Tensor bytes = plain.bytes.clone();
    exchange::write_header(header, bytes.mutable_data_ptr<std::uint8_t>());
    EXPECT_THAT(refusal([&] { read(bytes); }), HasSubstr(forged.says));
  }
}

TEST(StageMessages, APayloadOfSomethingElseIsRefused) {
  const Header header = payload_message(at::randn({3, 4}), kName).header;
  EXPECT_THAT(refusal([&] {
                stage_tensor(header, encode(at::randn({4, 3})));
              }),
              HasSubstr("is float32 of shape [4, 3], the header in front of it says float32 of"));
  const at::Tensor x = quantize(at::randn({30}), FloatFormat(4, 3), 1.0 / 3);
  const Header scaled = grid_message(x, kName, FloatFormat(4, 3), 1.0 / 3, false).header;
  EXPECT_EQ(scaled.tensor->coding, BodyCoding::kScaled);
  const at::Tensor none = encode(at::full({30}, std::nan("")));
  EXPECT_THAT(refusal([&] { stage_tensor(scaled, none); }), HasSubstr("NaN"));
}

TEST(StageMessages, WhatHasNoMessageIsRefused) {
  for (const at::Tensor& x :
       {at::zeros({2}, at::kComplexFloat), at::zeros(std::vector<std::int64_t>(9, 1))})
    EXPECT_THROW(plain_message(x, kName), InvalidArgument);
}

TEST(StageActivationNames, AreParsed) {
  using Mode = StageActivations::Mode;
  EXPECT_EQ(StageActivations::parse("lossless").mode, Mode::kLossless);
  EXPECT_EQ(StageActivations::parse("uniform4").bits, 4);
  EXPECT_FALSE(StageActivations::parse("fp8").format.has_value());
  EXPECT_EQ(StageActivations::parse("1-4-3").format, FloatFormat(4, 3));
  for (const char* const name : {"fp2", "1-1-0", "uniform1", "uniform9", "uniform44", "", "few"})
    EXPECT_THROW(StageActivations::parse(name), InvalidArgument) << name;
}

// ---- boundaries
// ----------------------------------------------------------------------------------

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(Stages, TensorsGoForwardAndGradientsComeBackInAnyOrder) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({8, 6}), gradient = at::randn({8, 6});
  const at::Tensor plan = new_gate_plan({.settings = {.bits = 6}, .seed = 7, .min_elements = 0});
  const at::Tensor expected = [&] {
    const at::Tensor leaf = x.clone().requires_grad_();
    gradient_gate(leaf, plan.clone(), new_gate_stats(), 1).backward(gradient);
    return leaf.grad();
  }();
  run_ranks(2, std::make_shared<MemoryNetwork>(), [&](int rank, const Group& group) {
    if (rank == 0) {
      StageOutput output(group, 1, StageActivations::parse("lossless"));
      const std::int64_t first = output.send(x), second = output.send(2 * x);
      EXPECT_TRUE(at::equal(output.receive(second), gradient));
      EXPECT_TRUE(at::equal(output.receive(first), expected));
      EXPECT_THROW(output.receive(first), InvalidArgument);
      output.flush();
      EXPECT_EQ(output.sent().messages, 2);
      EXPECT_EQ(output.received().plain_bytes, 2 * 8 * 6 * 4);
    } else {
      StageInput input(group, 0, {.shape = std::vector<std::int64_t>{-1, 6}, .type = at::kFloat});
      const auto first = input.receive(), second = input.receive();
      EXPECT_TRUE(at::equal(first.x, x));
      EXPECT_TRUE(at::equal(second.x, 2 * x));
      EXPECT_TRUE(second.wants_gradient);
      const StageGradients how{.plan = plan, .stats = new_gate_stats(), .stream = 1};
      input.send(gradient, first.number, how);
      input.send(gradient, second.number);
      input.flush();
    }
  });
}

TEST(Stages, WhatIsNotExpectedStopsBoth) {
  run_ranks(2, std::make_shared<MemoryNetwork>(), [&](int rank, const Group& group) {
    if (rank == 0) {
      StageOutput output(group, 1);
      const std::int64_t number = output.send(at::zeros({4, 6}));
      try {
        output.receive(number);
        FAIL();
      } catch (const BoundaryError& error) {
        EXPECT_THAT(error.what(), StartsWith("[StageOutput] rank 1 stopped: it refused activation "
                                             "0 from rank 0: expected at most max_bytes=95"));
      }
    } else {
      StageInput input(group, 0, {.max_bytes = 95});
      EXPECT_THAT(refusal([&] { input.receive(); }),
                  StartsWith("[StageInput] activation 0 from rank 0: expected at most"));
      input.flush();
    }
  });
}

// Header and body are messages of their own here, as Gloo has them.
TEST(Stages, DamageIsNamedOnBothSides) {
  struct Case {
    bool of_gradient;
    bool of_body;
    std::function<void(MemoryNetwork::Message&)> change;
    const char* says;
  };
  const auto flip = [](MemoryNetwork::Message& message) { message[20] ^= 1; };
  const auto terabytes = [](MemoryNetwork::Message& message) {
    Header header = exchange::read_header(message.data());
    header.tensor->coding = BodyCoding::kPayload;
    header.tensor->shape = {std::int64_t{1} << 40};
    header.tensor->order = {0};
    exchange::write_header(header, message.data());
  };
  const std::vector<Case> cases = {
      {false, false, flip, "a header that is damaged, or none"},
      {false, true, flip, "the checksum of the body does not fit"},
      {false, false, terabytes, "expected at most max_bytes=1073741824, got float32 of shape [109"},
      {true, false, flip, "a header that is damaged, or none"},
      {true, true, flip, "the checksum of the body does not fit"},
      {true, false, terabytes, "expected float32 of shape [4, 6], as the activation was, got floa"},
  };
  for (const Case& damage : cases) {
    const auto net = std::make_shared<MemoryNetwork>();
    int sent = 0;
    net->change = [&](int from, int, int, MemoryNetwork::Message& message) {
      if ((from == 1) == damage.of_gradient && (sent++ == 1) == damage.of_body && sent <= 2)
        damage.change(message);
    };
    std::array<std::string, 2> raised;
    run_ranks(2, net, [&](int rank, const Group& group) {
      try {
        if (rank == 0) {
          StageOutput output(group, 1);
          output.receive(output.send(at::zeros({4, 6})));
        } else {
          StageInput input(group, 0);
          input.send(at::zeros({4, 6}), input.receive().number);
          input.receive();  // hears of the refusal
        }
      } catch (const BoundaryError& error) {
        raised[static_cast<std::size_t>(rank)] = error.what();
      } catch (const PayloadError& error) {
        raised[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    EXPECT_THAT(raised, ::testing::Each(HasSubstr(damage.says)));
    EXPECT_THAT(raised[damage.of_gradient ? 1 : 0], HasSubstr("stopped: it refused"));
  }
}

TEST(Stages, MisuseIsRefused) {
  run_ranks(2, std::make_shared<MemoryNetwork>(), [&](int rank, const Group& group) {
    for (const int peer : {rank, 2, -1}) EXPECT_THROW(StageOutput(group, peer), InvalidArgument);
    EXPECT_THROW(StageInput(group, 1 - rank, {}, {.timeout = std::chrono::milliseconds(0)}),
                 InvalidArgument);
    EXPECT_THROW(StageInput(nullptr, 1 - rank), InvalidArgument);
  });
}

}  // namespace
}  // namespace slimgrad
