// Several threads of a program call the op library at the same time, each of them with torch's
// threads below it: everyone gets the bits that it would get alone. `make tsan-torch` runs this
// with a witness of every unguarded access; without it, a race shows only if it changes a result.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <slimgrad/gradient_gate.h>
#include <slimgrad/nn.h>
#include <slimgrad/sparse_layers.h>
#include <slimgrad/torch.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <future>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

namespace slimgrad {
namespace {

using torch::autograd::grad;
using Tensors = std::vector<at::Tensor>;

// More than there are cores, so that one is stopped in the middle of things while others go on; and
// often enough that memory which one has left behind is another's next.
constexpr int kCallers = 4, kRounds = 3;

class Threads : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(3);
    torch::manual_seed(0);
  }
  void TearDown() override { at::set_num_threads(before_); }

  // `work` reads what all callers share and has everything that it writes for itself. It gives the
  // same from every caller, in every round, as it gives alone.
  template <typename Work>
  void expect_same_bits(const Work& work) {
    const Tensors alone = work();
    std::latch start(kCallers);
    std::vector<std::vector<Tensors>> results(kCallers);
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i)
      callers.emplace_back([&, i] {
        start.arrive_and_wait();
        for (int round = 0; round < kRounds; ++round) results[i].push_back(work());
      });
    for (std::thread& caller : callers) caller.join();
    for (const auto& rounds : results)
      for (const Tensors& tensors : rounds) {
        ASSERT_EQ(tensors.size(), alone.size());
        for (std::size_t i = 0; i < alone.size(); ++i)
          EXPECT_TRUE(tensors[i].equal(alone[i])) << "result " << i;
      }
  }

 private:
  int before_ = at::get_num_threads();
};

template <typename Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

GateOptions pruned(double sparsity, std::uint64_t seed) {
  GateOptions options;
  options.settings.prune = PruneKind::kStochastic;
  options.settings.sparsity = sparsity;
  options.seed = seed;
  return options;
}

SparseLayerState always_sparse() {
  return {new_gate_plan(pruned(0.9, 1)), new_gate_stats(), new_gate_plan(pruned(0.5, 2)),
          new_gate_stats(), new_sparse_choice(true)};
}

// Half of them zeros, as behind a ReLU. 3 MiB: results of this size come from recycled memory.
at::Tensor gradient_of(at::IntArrayRef sizes) { return torch::randn(sizes).relu(); }

TEST_F(Threads, SparseConvolutions) {
  const at::Tensor x = torch::randn({16, 12, 64, 64}).requires_grad_();
  const at::Tensor weight = torch::randn({12, 12, 3, 3}).requires_grad_();
  const at::Tensor gradient = gradient_of({16, 12, 64, 64});
  expect_same_bits([&] {
    const SparseLayerState state = always_sparse();
    const at::Tensor y = sparse_conv2d(x, weight, std::nullopt, {1, 1}, {1, 1}, {1, 1}, 1, state);
    Tensors results = grad({y}, {x, weight}, {gradient});
    results.push_back(state.weight_stats);
    return results;
  });
}

TEST_F(Threads, SparseLinearLayers) {
  const at::Tensor x = torch::randn({512, 640}).requires_grad_();
  const at::Tensor weight = torch::randn({512, 640}).requires_grad_();
  const at::Tensor bias = torch::randn({512}).requires_grad_();
  const at::Tensor gradient = gradient_of({512, 512});
  expect_same_bits([&] {
    const at::Tensor y = sparse_linear(x, weight, bias, always_sparse());
    return grad({y}, {x, weight, bias}, {gradient});
  });
}

TEST_F(Threads, Gates) {
  const at::Tensor x = torch::randn({512, 512}).requires_grad_();
  const at::Tensor gradient = gradient_of({512, 512});
  GateOptions options = pruned(0.8, 3);
  options.settings.bits = 4;
  expect_same_bits([&] {
    const at::Tensor plan = new_gate_plan(options), stats = new_gate_stats();
    Tensors results = grad({gradient_gate(x, plan, stats)}, {x}, {gradient});
    // Once more, in place.
    const at::Tensor own = gradient.clone();
    op<void(at::Tensor, at::Tensor, at::Tensor, std::int64_t)>("slimgrad::compress_gradient_")
        .call(own, plan, stats, 1);
    results.insert(results.end(), {own, plan, stats});
    return results;
  });
}

// Passes through one gate are counted and draw by themselves, whoever makes them.
constexpr int kPasses = 20;

template <typename Pass>
Tensors passes_of_all(const Pass& pass) {
  std::latch start(kCallers);
  std::vector<Tensors> results(kCallers);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i)
    callers.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int round = 0; round < kPasses; ++round) results[i].push_back(pass());
    });
  for (std::thread& caller : callers) caller.join();
  Tensors all;
  for (const Tensors& some : results) all.insert(all.end(), some.begin(), some.end());
  return all;
}

void expect_all_different(const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(tensors[i].equal(tensors[k])) << i << ' ' << k;
}

TEST_F(Threads, PassesThroughOneGate) {
  const at::Tensor x = torch::randn({96, 96}).requires_grad_();
  const at::Tensor gradient = gradient_of({96, 96});
  const at::Tensor plan = new_gate_plan(pruned(0.8, 3)), stats = new_gate_stats();
  const Tensors results = passes_of_all(
      [&] { return grad({gradient_gate(x, plan, stats)}, {x}, {gradient.clone()})[0]; });
  EXPECT_EQ(gate_report(plan, stats).calls, kCallers * kPasses);
  expect_all_different(results);
}

TEST_F(Threads, PassesThroughOneSparseLayer) {
  const at::Tensor x = torch::randn({96, 64}).requires_grad_();
  const at::Tensor weight = torch::randn({96, 64}).requires_grad_();
  const at::Tensor gradient = gradient_of({96, 96});
  const SparseLayerState state = always_sparse();
  const Tensors results = passes_of_all([&] {
    const auto both =
        grad({sparse_linear(x, weight, std::nullopt, state)}, {x, weight}, {gradient});
    return at::cat({both[0].flatten(), both[1].flatten()});
  });
  EXPECT_EQ(gate_report(state.weight_plan, state.weight_stats).calls, kCallers * kPasses);
  EXPECT_EQ(gate_report(state.input_plan, state.input_stats).calls, kCallers * kPasses);
  expect_all_different(results);
}

TEST_F(Threads, OneKeeper) {
  const at::Tensor x = torch::randn({64, 128}).requires_grad_();
  SavedTensors saved_tensors({.bits = 2}, 5);
  const Tensors results = passes_of_all([&] {
    const at::Tensor own = x * 1;  // memory of its own, and so draws
    return saved_tensors.pack(own).unpack();
  });
  EXPECT_EQ(saved_tensors.state()[1].item<std::int64_t>(), kCallers * kPasses);
  expect_all_different(results);
}

TEST_F(Threads, MeasuringPruningPackingAndCoding) {
  const at::Tensor x = torch::randn({600, 512});
  const auto measure = op<at::Tensor(const at::Tensor&)>("slimgrad::measure");
  const auto stochastic = Rounding::kStochastic;
  expect_same_bits([&] {
    const at::Tensor payload =
        encode(x, {.kind = PayloadKind::kUniform, .bits = 6, .rounding = stochastic, .seed = 7});
    const at::Tensor exact = encode(x, {.coder = EntropyCoder::kHuffman});
    return Tensors{payload,
                   decode(payload),
                   exact,
                   decode(exact),
                   measure.call(x),
                   prune(x, 1.5, 11),
                   pack(x, FloatFormat(5, 2), 0.01, stochastic, Underflow::kStochastic, 13).data};
  });
}

TEST_F(Threads, Activations) {
  const at::Tensor x = torch::randn({600, 512}).requires_grad_();
  const at::Tensor gradient = torch::randn({600, 512});
  nn::GELU few_bits;
  nn::SiLU exact(FewbitOptions().exact(true));
  expect_same_bits([&] {
    return Tensors{grad({few_bits->forward(x)}, {x}, {gradient})[0],
                   grad({exact->forward(x)}, {x}, {gradient})[0]};
  });
}

// A result may live on in a thread that did not make it, and end there.
TEST_F(Threads, ResultsEndInAnotherThread) {
  const at::Tensor x = torch::randn({512, 640}).requires_grad_();
  const at::Tensor weight = torch::randn({512, 640}).requires_grad_();
  const at::Tensor gradient = gradient_of({512, 512});
  const auto backward = [&] {
    return grad({sparse_linear(x, weight, std::nullopt, always_sparse())}, {x, weight}, {gradient});
  };
  const Tensors alone = backward();
  std::vector<std::future<Tensors>> made;
  for (int i = 0; i < 2 * kCallers; ++i) made.push_back(std::async(std::launch::async, backward));
  for (auto& future : made) {
    const Tensors tensors = future.get();
    EXPECT_TRUE(tensors[0].equal(alone[0]));
    EXPECT_TRUE(tensors[1].equal(alone[1]));
  }
}

}  // namespace
}  // namespace slimgrad
