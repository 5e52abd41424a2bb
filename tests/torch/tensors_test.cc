// What <slimgrad/torch.h> does beyond what test_like_cpp.py compares with Python: errors,
// files, and values that follow from the definitions.
#include <slimgrad/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <unistd.h>

#include <filesystem>
#include <string>
#include <variant>

namespace slimgrad {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

class TempFolder {
 public:
  TempFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("slimgrad-tensors-test-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

TEST(Tensors, ResultsAreInPlaceOrFresh) {
  const FloatFormat format(4, 1);
  const at::Tensor x = at::randn({64, 65});
  const at::Tensor before = x.clone();
  const at::Tensor pruned = prune(x, 0.5, 7), quantized = quantize(x, format, 0.25);
  EXPECT_TRUE(x.equal(before));
  at::Tensor y = before.clone();
  EXPECT_TRUE(prune_(y, 0.5, 7).is_same(y));
  EXPECT_TRUE(y.equal(pruned));
  y = before.clone();
  EXPECT_TRUE(quantize_(y, format, 0.25).is_same(y));
  EXPECT_TRUE(y.equal(quantized));
  y = before.clone();
  prune_quantize_(y, 0.5, format, 0.25, Rounding::kNearest, Underflow::kZero, 7);
  EXPECT_TRUE(y.equal(quantize(pruned, format, 0.25)));
}

TEST(Tensors, WithoutASeedOneComesFromTorchsGenerator) {
  const at::Tensor x = at::randn({4096});
  torch::manual_seed(3);
  const at::Tensor first = prune(x, 1), second = prune(x, 1);
  EXPECT_FALSE(first.equal(second));
  torch::manual_seed(3);
  EXPECT_TRUE(prune(x, 1).equal(first));
  // What draws nothing takes none.
  torch::manual_seed(3);
  quantize(x, FloatFormat(4, 1), 1);
  EXPECT_TRUE(prune(x, 1).equal(first));
}

TEST(Tensors, PackedTensorsKnowTheirSizeAndComeBack) {
  const at::Tensor x = at::randn({7, 9}, at::kBFloat16);
  const PackedTensor packed = pack(x, FloatFormat(3, 1), 0.5);
  EXPECT_EQ(packed.numel(), 63);
  EXPECT_EQ(packed.nbytes(), (63 * 5 + 7) / 8);
  EXPECT_TRUE(packed.unpack().equal(quantize(x, FloatFormat(3, 1), 0.5)));
  EXPECT_EQ(packed.unpack(at::kFloat).scalar_type(), at::kFloat);
}

TEST(Tensors, FitsAndDistances) {
  torch::manual_seed(0);
  const at::Tensor x = at::randn({20000}) * 3;
  const Distribution law = fit(x, Family::kNormal);
  EXPECT_NEAR(law.params()[0], 3, 0.1);  // its standard error is 3 / sqrt(40000) = 0.015
  EXPECT_LT(ks(law, x), 0.02);
  EXPECT_LT(wasserstein(law, x), 0.15);
  const at::Tensor p = at::arange(1, 10, at::kDouble) / 10;
  EXPECT_TRUE(cdf(law, quantile(law, p)).allclose(p));
  EXPECT_NEAR(pdf(law, at::ones({1}) * 0).item<double>(), law.density(0), 1e-12);
}

TEST(Tensors, StepsOfAFunctionAreThoseOfItsName) {
  const StepTable named = steps("silu", 2, -4, 4);
  const StepTable sampled = steps([](const at::Tensor& x) { return x * x.sigmoid(); }, 2, -4, 4);
  ASSERT_EQ(sampled.borders.size(), named.borders.size());
  for (std::size_t i = 0; i < named.borders.size(); ++i)
    EXPECT_NEAR(sampled.borders[i], named.borders[i], 1e-3);
}

TEST(Tensors, PayloadsAndFilesComeBack) {
  const TempFolder folder;
  const at::Tensor x = at::randn({33, 5});
  const at::Tensor payload = encode(x);
  EXPECT_TRUE(decode(payload).equal(x));
  EXPECT_EQ(inspect(payload).shape, (std::vector<std::uint64_t>{33, 5}));
  const at::Tensor room = at::ones({static_cast<std::int64_t>(x.nbytes()) + 64}, at::kByte);
  EXPECT_TRUE(encode_into(x, {}, room).equal(payload));
  EXPECT_TRUE(decode_into(payload, at::ones({33, 5})).equal(x));

  save(x, folder / "one.sg");
  EXPECT_TRUE(std::get<at::Tensor>(load(folder / "one.sg")).equal(x));
  TensorDict tensors;
  tensors.insert("x", x);
  tensors.insert("counts", at::arange(5));
  save(tensors, folder / "two.sg", {}, Metadata{{"made", "here"}});
  const auto loaded = std::get<TensorDict>(load(folder / "two.sg"));
  EXPECT_EQ(loaded.keys(), tensors.keys());
  EXPECT_TRUE(loaded["x"].equal(x));
  EXPECT_TRUE(loaded["counts"].equal(tensors["counts"]));
  EXPECT_EQ(loaded["counts"].scalar_type(), at::kLong);
}

TEST(Tensors, FilesThatAreTooLargeDamagedMissingOrNotToBeWritten) {
  const TempFolder folder;
  const at::Tensor x = at::randn({100});
  EXPECT_THAT([&] { decode(encode(x), 399); },
              ThrowsMessage<PayloadError>(HasSubstr("max_bytes=399 of values, got 400 bytes")));
  TensorDict tensors;
  tensors.insert("x", x);
  save(tensors, folder / "x.sg");
  EXPECT_THAT([&] { load(folder / "x.sg", 399); },
              ThrowsMessage<PayloadError>(HasSubstr("of values, got 400 bytes")));
  std::filesystem::resize_file(folder / "x.sg", 100);
  EXPECT_THROW(load(folder / "x.sg"), PayloadError);
  std::filesystem::resize_file(folder / "x.sg", 0);
  EXPECT_THROW(load(folder / "x.sg"), PayloadError);
  EXPECT_THROW(load(folder / "none.sg"), std::filesystem::filesystem_error);
  EXPECT_THROW(save(x, folder / "no-folder/x.sg"), std::filesystem::filesystem_error);
  tensors.insert("nan", x / 0 * 0);
  EXPECT_THAT([&] { save(tensors, folder / "y.sg", {.kind = PayloadKind::kUniform}); },
              ThrowsMessage<InvalidArgument>(HasSubstr(" in 'nan'")));
  EXPECT_FALSE(std::filesystem::exists(folder / "y.sg"));
}

TEST(Tensors, MisuseNamesTheCall) {
  const at::Tensor x = at::randn({8});
  EXPECT_THAT([&] { quantize(x.to(at::kDouble), FloatFormat(4, 1), 1); },
              ThrowsMessage<InvalidArgument>(StartsWith("[quantize] expected x of type")));
  EXPECT_THAT([&] { prune(x.to_sparse(), 1); },
              ThrowsMessage<InvalidArgument>(
                  StartsWith("[prune] expected x to be a dense tensor, got layout")));
  EXPECT_THAT([&] { prune({}, 1); },
              ThrowsMessage<InvalidArgument>("[prune] expected x to be a tensor, got none"));
  EXPECT_THAT(
      [&] { prune(at::randn({8}).requires_grad_(), 1); },
      ThrowsMessage<InvalidArgument>(StartsWith("[prune] expected a tensor that does not")));
  EXPECT_THAT([&] { encode(x.to(at::kMeta)); },
              ThrowsMessage<InvalidArgument>(StartsWith("[encode] expected x to have values")));
  EXPECT_THAT([&] { encode(x.to(at::kLong)); },
              ThrowsMessage<InvalidArgument>(StartsWith("[encode] expected x of type")));
  EXPECT_THAT([&] { decode(x); },
              ThrowsMessage<InvalidArgument>(StartsWith("[decode] expected a payload")));
  EXPECT_THAT([&] { steps("gelu", 9); },
              ThrowsMessage<InvalidArgument>(StartsWith("[steps] expected 1 to 5 bits")));
  EXPECT_THAT([&] { steps([](const at::Tensor& y) { return y.sum(); }); },
              ThrowsMessage<InvalidArgument>(StartsWith("[steps] expected a pointwise function")));
}

TEST(Functional, MisuseNamesTheCall) {
  const at::Tensor x = at::randn({8});
  EXPECT_THAT([&] { functional::gelu(x, "sine"); },
              ThrowsMessage<InvalidArgument>(StartsWith("[gelu] expected approximate")));
  EXPECT_THAT([&] { functional::tanh(x, FewbitOptions().exact(true)); },
              ThrowsMessage<InvalidArgument>(StartsWith("[tanh] expected 1 to 4 bits")));
  EXPECT_THAT([&] { functional::silu(x, true, FewbitOptions().exact(true)); },
              ThrowsMessage<InvalidArgument>(StartsWith("[silu] expected inplace")));
  EXPECT_THAT([&] { functional::dropout(x, 2); },
              ThrowsMessage<InvalidArgument>(StartsWith("[dropout] expected a probability")));
  EXPECT_THAT([&] { functional::hardtanh(x, 1, -1); },
              ThrowsMessage<InvalidArgument>(StartsWith("[hardtanh] expected min_val <= max_val")));
  const StepTable table = steps("silu", 2);
  EXPECT_THAT(
      [&] {
        functional::stepwise(
            x, [](const at::Tensor& y) { return y.sum(); }, table);
      },
      ThrowsMessage<InvalidArgument>(StartsWith("[stepwise] expected f to keep shape")));
  const at::Tensor weight = at::ones({1}).requires_grad_();
  EXPECT_THAT([&] { functional::prelu(x, weight); },
              ThrowsMessage<InvalidArgument>(StartsWith("[prelu] expected a weight")));
}

TEST(Functional, StepwiseMultipliesWithTheLevels) {
  const at::Tensor x = at::randn({1000}).requires_grad_();
  const StepTable table = layer_steps("silu", {}, 2);
  const auto silu = [](const at::Tensor& y) { return y * y.sigmoid(); };
  const at::Tensor ours = functional::stepwise(x, silu, table);
  EXPECT_TRUE(ours.equal(silu(x)));
  const at::Tensor named = functional::silu(x, false, FewbitOptions().bits(2));
  const auto gradient = [&](const at::Tensor& y) {
    return torch::autograd::grad({y.sum()}, {x})[0];
  };
  EXPECT_TRUE(gradient(ours).equal(gradient(named)));
}

}  // namespace
}  // namespace slimgrad
