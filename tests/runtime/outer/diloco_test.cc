// DiLoCo between ranks that are threads: its rule against one written in double, equal bits on all
// ranks, states, faults. Real processes and networks are in tests/python/distributed.
#include <slimgrad/diloco.h>
#include <slimgrad/tensor_coder.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>

#include "../exchange/memory_group.h"
#include "runtime/exchange/message.h"

namespace slimgrad {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Named = DiLoCoTensors::Named;

std::shared_ptr<MemoryNetwork> network() { return std::make_shared<MemoryNetwork>(); }

at::Tensor random(int seed, at::IntArrayRef shape) {
  // A generator of its own: ranks are threads.
  return at::randn(shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)));
}

// Two layers, "a" and "b", and what stands beside them.
struct Model {
  explicit Model(int seed, at::ScalarType type = at::kFloat)
      : weight(random(10 + seed, {96, 64}).to(type).requires_grad_()),
        bias(random(20 + seed, {64}).to(type).requires_grad_()),
        other(random(30 + seed, {64, 80}).to(type).t().requires_grad_()),
        frozen(random(40 + seed, {50})),
        mean(random(50 + seed, {64})),
        count(at::zeros({}, at::kLong)) {}

  DiLoCoTensors tensors() const {
    return {{{"a.weight", weight},
             {"a.bias", bias},
             {"b.weight", other},
             {"b.tied", weight},
             {"frozen", frozen}},
            {{"a.mean", mean}, {"a.count", count}}};
  }
  std::vector<at::Tensor> trained() const { return {weight, bias, other}; }
  // What a rank does in a step: the same whenever it is called with these numbers.
  void train(int rank, std::int64_t step) const {
    const at::NoGradGuard no_grad;
    int place = 0;
    for (const at::Tensor& x : trained())
      x.add_(random(static_cast<int>(1000 * step + 10 * rank + place++), x.sizes()), 0.01);
    mean.add_(rank + 1);
    count.add_(rank + 1);
  }
  std::vector<at::Tensor> copies() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& x : {weight, bias, other, frozen, mean, count})
      copies.push_back(x.detach().clone());
    return copies;
  }

  at::Tensor weight, bias, other, frozen, mean, count;
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return at::equal(x, y); });
}

// What a rank runs, with a model of its own that it trains by itself.
template <typename Run>
void run_models(int size, const std::shared_ptr<MemoryNetwork>& net, const DiLoCoOptions& options,
                const Run& run, at::ScalarType type = at::kFloat) {
  run_ranks(size, net, [&](int rank, const Group& group) {
    const Model model(rank, type);
    std::int64_t step = 0;
    DiLoCo diloco(
        Exchange::of(group), model.tensors(), [&] { model.train(rank, step++); }, options);
    run(rank, model, diloco);
  });
}

DiLoCoOptions options_of(const char* codec, std::int64_t every, std::int64_t fragments = 1,
                         std::int64_t overlap = 0) {
  DiLoCoOptions options;
  options.codec = Codec::parse(codec);
  options.every = every;
  options.fragments = fragments;
  options.overlap = overlap;
  return options;
}

class Ranks : public ::testing::TestWithParam<int> {};

// Without loss: SGD with Nesterov's momentum on the mean distance, in double.
TEST_P(Ranks, FollowTheRuleOfTheOuterOptimizer) {
  const int size = GetParam();
  constexpr int kEvery = 3, kRounds = 4;
  std::vector<at::Tensor> shared, momentum, first = Model(0).trained();
  for (const at::Tensor& x : first) {
    shared.push_back(x.detach().to(at::kDouble).clone());
    momentum.push_back(at::zeros_like(shared.back()));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < shared.size(); ++i) {
      at::Tensor sum = at::zeros_like(shared[i]);
      for (int rank = 0; rank < size; ++rank)
        for (int step = kEvery * round; step < kEvery * (round + 1); ++step)
          sum.sub_(random(1000 * step + 10 * rank + static_cast<int>(i), shared[i].sizes())
                       .to(at::kDouble),
                   0.01);
      const at::Tensor mean = sum / double(size);
      momentum[i].mul_(0.9).add_(mean);
      shared[i].sub_(mean + 0.9 * momentum[i], 0.7);
    }
  }
  std::vector<std::vector<at::Tensor>> ends(static_cast<std::size_t>(size));
  run_models(size, network(), options_of("lossless", kEvery),
             [&](int rank, const Model& model, DiLoCo& diloco) {
               for (int step = 1; step <= kEvery * kRounds; ++step)
                 EXPECT_EQ(diloco.step(), step % kEvery == 0);
               EXPECT_EQ(diloco.num_rounds(), kRounds);
               ends[static_cast<std::size_t>(rank)] = model.trained();
             });
  for (const auto& end : ends)
    for (std::size_t i = 0; i < shared.size(); ++i) {
      EXPECT_TRUE(at::equal(end[i], ends[0][i]));
      EXPECT_LT((end[i].to(at::kDouble) - shared[i]).abs().max().item<double>(), 2e-6) << i;
    }
}

// SparseLoCo: of what a rank has to send, 0.95 of what it kept back before included, it sends the
// largest; their mean over ranks moves the weights.
TEST_P(Ranks, FollowTheRuleOfSparseLoCo) {
  const int size = GetParam();
  constexpr int kEvery = 2, kRounds = 5;
  DiLoCoOptions options = options_of("topk", kEvery);
  options.outer = {.lr = 1, .momentum = 0};
  options.feedback = 0.95;
  const Codec plain = Codec::parse("topk");
  std::vector<at::Tensor> shared;
  for (const at::Tensor& x : Model(0).trained()) shared.push_back(x.detach().clone().contiguous());
  std::vector<at::Tensor> nothing;
  for (const at::Tensor& x : shared) nothing.push_back(at::zeros_like(x));
  std::vector<std::vector<at::Tensor>> kept_back(static_cast<std::size_t>(size), nothing);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& x : shared) sums.push_back(at::zeros_like(x));
    for (int rank = 0; rank < size; ++rank) {
      std::vector<at::Tensor>& mine = kept_back[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < shared.size(); ++i) {
        at::Tensor now = shared[i].clone();
        for (int step = kEvery * round; step < kEvery * (round + 1); ++step)
          now.add_(random(1000 * step + 10 * rank + static_cast<int>(i), now.sizes()), 0.01);
        mine[i] = mine[i] * 0.95 + (shared[i] - now);
      }
      TensorCoder coder(plain);
      const auto sent = size > 1 ? coder.decode(coder.encode(mine), mine) : mine;
      for (std::size_t i = 0; i < shared.size(); ++i) {
        sums[i].add_(sent[i]);
        mine[i] = mine[i] - sent[i];
      }
    }
    for (std::size_t i = 0; i < shared.size(); ++i) shared[i].sub_(sums[i] / double(size));
  }
  run_models(size, network(), options, [&](int, const Model& model, DiLoCo& diloco) {
    for (int step = 0; step < kEvery * kRounds; ++step) diloco.step();
    for (std::size_t i = 0; i < shared.size(); ++i)
      EXPECT_LT((model.trained()[i] - shared[i]).abs().max().item<double>(), 1e-6) << i;
  });
}

TEST_P(Ranks, HaveTheSameBitsAfterEachRound) {
  const int size = GetParam();
  for (const char* const codec : {"fp4", "rate2", "uniform4", "pruned", "topk"})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      std::vector<std::vector<std::vector<at::Tensor>>> by_round(2);
      for (auto& ranks : by_round) ranks.resize(static_cast<std::size_t>(size));
      run_models(
          size, network(), options_of(codec, 2),
          [&](int rank, const Model& model, DiLoCo& diloco) {
            for (auto& ranks : by_round) {
              diloco.step();
              diloco.step();
              ranks[static_cast<std::size_t>(rank)] = model.copies();
            }
            EXPECT_EQ(diloco.sent_bytes() > 0, size > 1);
          },
          type);
      for (const auto& ranks : by_round)
        for (int rank = 0; rank < size; ++rank) {
          const auto& one = ranks[static_cast<std::size_t>(rank)];
          for (const std::size_t i : {0, 1, 2, 4}) EXPECT_TRUE(at::equal(one[i], ranks[0][i])) << i;
          EXPECT_TRUE(at::equal(one[3], Model(rank).frozen));
        }
      // Each rank trained with its own counter, and the mean of buffers is that of ranks.
      EXPECT_EQ(by_round[1][0][5].item<std::int64_t>(), 4);
      const double moved = (by_round[1][0][4] - Model(0).mean).mean().item<double>();
      EXPECT_NEAR(moved, 4 * (size + 1) / 2.0, 1e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Ranks, ::testing::Values(1, 2, 3, 5));

TEST(DiLoCo, RoundingToTheTypeOfTheModelIsNoDistance) {
  run_ranks(2, network(), [&](int rank, const Group& group) {
    const at::Tensor x = at::ones({5'000}, at::kBFloat16).requires_grad_();
    std::int64_t step = 0;
    DiLoCo diloco(
        Exchange::of(group), {{{"x", x}}},
        [&] {
          const at::NoGradGuard no_grad;
          if (step++ == 0 && rank == 0) x.add_(0.015625);  // two units in the last place
        },
        {.outer = {.lr = 0.1, .momentum = 0}, .every = 1, .codec = Codec::parse("lossless")});
    for (int i = 0; i < 5; ++i) diloco.step();
    // The shared value is 1 + 0.1 * 0.015625 / 2, which no bfloat16 is, and stays.
    const at::Tensor shared = diloco.state_dict().at("shared/x");
    EXPECT_TRUE(at::equal(shared, at::full({5'000}, 1.0f - 0.1f * -0.0078125f)));
    EXPECT_TRUE(at::equal(x, at::ones({5'000}, at::kBFloat16)));
  });
}

TEST(DiLoCo, ConstantBuffersStayWhatTheyAre) {
  run_ranks(3, network(), [&](int, const Group& group) {
    const at::Tensor x = at::ones({10}).requires_grad_();
    const at::Tensor mask = at::full({5}, -std::numeric_limits<float>::infinity());
    const at::Tensor third = at::full({7}, 1.0f / 3.0f);
    DiLoCo diloco(Exchange::of(group), {{{"x", x}}, {{"mask", mask}, {"third", third}}}, nullptr,
                  options_of("fp4", 1));
    for (int i = 0; i < 3; ++i) diloco.step();
    EXPECT_TRUE(at::equal(mask, at::full({5}, -std::numeric_limits<float>::infinity())));
    EXPECT_TRUE(at::equal(third, at::full({7}, 1.0f / 3.0f)));
  });
}

TEST(DiLoCo, FragmentsTakeTurns) {
  run_models(
      2, network(), options_of("lossless", 4, 2), [&](int, const Model& model, DiLoCo& diloco) {
        std::vector<bool> ended;
        for (int step = 0; step < 8; ++step) ended.push_back(diloco.step());
        EXPECT_THAT(ended,
                    ::testing::ElementsAre(false, true, false, true, false, true, false, true));
        EXPECT_EQ(diloco.num_rounds(), 4);
        // The larger module is in the first fragment, whose turn was two steps ago.
        const DiLoCo::State state = diloco.state_dict();
        EXPECT_FALSE(at::equal(state.at("shared/a.weight"), model.weight));
        EXPECT_TRUE(at::equal(state.at("shared/b.weight"), model.other));
        diloco.synchronize();
        EXPECT_EQ(diloco.num_rounds(), 5);
        const DiLoCo::State last = diloco.state_dict();
        EXPECT_TRUE(at::equal(last.at("shared/a.weight"), model.weight));
      });
}

// Where nothing was trained since a round there is no distance, and momentum alone moves nothing.
TEST(DiLoCo, SynchronizeAfterARoundChangesNothing) {
  for (const std::int64_t overlap : {0, 1}) {
    std::vector<DiLoCo::State> saved(2);
    const DiLoCoOptions options = options_of("fp4", 4, 2, overlap);
    const auto expect_no_change = [](const Model& model, DiLoCo& diloco) {
      const std::vector<at::Tensor> before = model.copies();
      const std::int64_t rounds = diloco.num_rounds();
      diloco.synchronize();
      EXPECT_TRUE(equal(model.copies(), before));
      EXPECT_EQ(diloco.num_rounds(), rounds);
    };
    run_models(2, network(), options, [&](int rank, const Model& model, DiLoCo& diloco) {
      for (int step = 0; step < 5; ++step) diloco.step();
      diloco.synchronize();
      expect_no_change(model, diloco);
      const DiLoCo::State own = diloco.state_dict(true), shared = diloco.state_dict();
      diloco.load_state_dict(own);
      expect_no_change(model, diloco);
      diloco.step();
      diloco.load_state_dict(shared);
      expect_no_change(model, diloco);
      saved[static_cast<std::size_t>(rank)] = own;
    });
    // Other fragments: what was exchanged last is not known.
    run_models(2, network(), options_of("fp4", 4), [&](int rank, const Model&, DiLoCo& diloco) {
      diloco.load_state_dict(saved[static_cast<std::size_t>(rank)]);
      const std::int64_t rounds = diloco.num_rounds();
      diloco.synchronize();
      EXPECT_EQ(diloco.num_rounds(), rounds + 1);
    });
  }
}

// What is trained while an exchange is under way counts once: in the weights at once, and in the
// distance of the next round.
TEST(DiLoCo, OverlapKeepsWhatIsTrainedMeanwhile) {
  constexpr int kSteps = 12;
  for (const std::int64_t overlap : {0, 1, 2}) {
    std::vector<at::Tensor> ends(2);
    DiLoCoOptions options = options_of("lossless", 3, 1, overlap);
    options.outer = {.lr = 1, .momentum = 0};  // the mean of what ranks did
    run_models(2, network(), options, [&](int rank, const Model& model, DiLoCo& diloco) {
      for (int step = 0; step < kSteps; ++step) diloco.step();
      diloco.synchronize();
      ends[static_cast<std::size_t>(rank)] = model.weight.detach().clone();
    });
    at::Tensor wanted = Model(0).weight.detach().to(at::kDouble).clone();
    for (int rank = 0; rank < 2; ++rank)
      for (int step = 0; step < kSteps; ++step)
        wanted.add_(random(1000 * step + 10 * rank, {96, 64}).to(at::kDouble), 0.01 / 2);
    EXPECT_TRUE(at::equal(ends[0], ends[1])) << overlap;
    EXPECT_LT((ends[0].to(at::kDouble) - wanted).abs().max().item<double>(), 2e-6) << overlap;
  }
}

TEST(DiLoCo, WhatRoundingLostIsSentLater) {
  DiLoCoOptions options = options_of("uniform2", 1);
  options.codec.error_feedback = true;
  options.outer = {.lr = 1, .momentum = 0};
  constexpr int kSteps = 200;
  run_ranks(2, network(), [&](int rank, const Group& group) {
    const at::Tensor x = at::zeros({20'000}).requires_grad_();
    const at::Tensor moves = at::linspace(-1, 1, 20'000) * (1 + rank);
    DiLoCo diloco(
        Exchange::of(group), {{{"x", x}}},
        [&] {
          const at::NoGradGuard no_grad;
          x.add_(moves);
        },
        options);
    for (int step = 0; step < kSteps; ++step) diloco.step();
    const at::Tensor error = x.detach() / kSteps - at::linspace(-1, 1, 20'000) * 1.5;
    EXPECT_LT(error.abs().max().item<double>(), 5.0 / kSteps);
  });
}

// ---- states

TEST(DiLoCo, GoesOnFromItsOwnStateToTheBit) {
  for (const std::int64_t overlap : {0, 2}) {
    DiLoCoOptions options = options_of("uniform3", 4, 2, overlap);
    options.codec.error_feedback = true;
    options.feedback = 0.9;
    std::vector<DiLoCo::State> saved(3);
    std::vector<std::vector<at::Tensor>> weights(3), ends(3);
    run_models(3, network(), options, [&](int rank, const Model& model, DiLoCo& diloco) {
      const auto i = static_cast<std::size_t>(rank);
      for (int step = 1; step <= 19; ++step) {
        diloco.step();
        // A step after a fragment's turn: with overlap its round is under way.
        if (step != 11) continue;
        weights[i] = model.copies();
        saved[i] = diloco.state_dict(true);
      }
      ends[i] = model.copies();
    });
    run_ranks(3, network(), [&](int rank, const Group& group) {
      const auto i = static_cast<std::size_t>(rank);
      const Model model(100);
      std::int64_t step = 11;
      // With error feedback nothing is drawn: draws depend on the group's name, another one here.
      DiLoCo diloco(
          Exchange::of(group), model.tensors(), [&] { model.train(rank, step++); }, options);
      const at::NoGradGuard no_grad;
      const std::vector<at::Tensor> own = {model.weight, model.bias, model.other,
                                           model.frozen, model.mean, model.count};
      for (std::size_t k = 0; k < own.size(); ++k) own[k].detach().copy_(weights[i][k]);
      diloco.load_state_dict(saved[i]);
      EXPECT_EQ(diloco.num_steps(), 11);
      while (diloco.num_steps() < 19) diloco.step();
      EXPECT_TRUE(equal(model.copies(), ends[i])) << "overlap " << overlap;
    });
  }
}

TEST(DiLoCo, AnotherNumberOfRanksGoesOnFromTheLastRound) {
  DiLoCo::State saved;
  std::vector<at::Tensor> weights;
  run_models(3, network(), options_of("fp4", 2), [&](int rank, const Model& model, DiLoCo& diloco) {
    for (int step = 0; step < 4; ++step) diloco.step();
    if (rank == 1) weights = model.copies();
    diloco.step();  // of the next round, alone
    if (rank == 1) saved = diloco.state_dict();
  });
  run_models(2, network(), options_of("rate2", 3), [&](int, const Model& model, DiLoCo& diloco) {
    diloco.load_state_dict(saved);
    EXPECT_EQ(diloco.num_steps(), 4);
    EXPECT_EQ(diloco.num_rounds(), 2);
    for (const std::size_t i : {0, 1, 2, 4})
      EXPECT_TRUE(at::equal(model.copies()[i], weights[i])) << i;
    for (int step = 0; step < 2; ++step) diloco.step();
    EXPECT_EQ(diloco.num_rounds(), 3);
  });
}

template <typename Run>
std::vector<std::string> refusals(int size, const Run& run) {
  std::vector<std::string> raised(static_cast<std::size_t>(size));
  run_ranks(size, network(), [&](int rank, const Group& group) {
    // As long as there is an exchange, its ranks count alike.
    const auto exchange = Exchange::of(group);
    try {
      run(rank, exchange);
    } catch (const InvalidArgument& error) {
      raised[static_cast<std::size_t>(rank)] = error.what();
    }
    const at::Tensor x = at::ones({10});  // the group is as good as before
    exchange->all_reduce({x}, Codec::parse("lossless"))->wait();
    EXPECT_TRUE(at::equal(x, at::full({10}, double(size))));
  });
  return raised;
}

TEST(DiLoCo, StatesOfOtherRoundsAreRefusedOnAllRanks) {
  const auto raised = refusals(2, [&](int rank, const std::shared_ptr<Exchange>& exchange) {
    const Model model(rank);
    DiLoCo diloco(
        exchange, model.tensors(), [&] { model.train(rank, 0); }, options_of("fp4", 1));
    const DiLoCo::State before = diloco.state_dict();
    diloco.step();
    const std::vector<at::Tensor> weights = model.copies();
    try {
      diloco.load_state_dict(rank == 0 ? before : diloco.state_dict());
    } catch (const InvalidArgument&) {
      EXPECT_TRUE(equal(model.copies(), weights));
      EXPECT_EQ(diloco.num_rounds(), 1);
      throw;
    }
  });
  EXPECT_THAT(raised, Each(AllOf(HasSubstr("[DiLoCo.load_state_dict]"),
                                 HasSubstr("rounds: 0 on rank 0, 1 on rank 1"))));
}

TEST(DiLoCo, WrongStatesAreRefused) {
  const auto refused = [](const auto& change, bool own = false) {
    const auto raised = refusals(2, [&](int rank, const std::shared_ptr<Exchange>& exchange) {
      const Model model(rank);
      DiLoCo diloco(exchange, model.tensors(), nullptr, options_of("fp4", 1));
      DiLoCo::State state = diloco.state_dict(own);
      if (rank == 1) change(state);
      diloco.load_state_dict(state);
    });
    EXPECT_THAT(raised[0], HasSubstr("failed on rank 1: "));
    return raised[1];
  };
  using State = DiLoCo::State;
  EXPECT_THAT(refused([](State& s) { static_cast<void>(s.erase("step")); }),
              HasSubstr("a state with step, got none"));
  EXPECT_THAT(refused([](State& s) { s.insert_or_assign("version", at::ones({}, at::kLong) * 2); }),
              HasSubstr("a state of version 1, got 2"));
  EXPECT_THAT(refused([](State& s) { s.insert_or_assign("rounds", at::full({}, -1, at::kLong)); }),
              HasSubstr("rounds to be 0 to 2^48, got -1"));
  EXPECT_THAT(refused([](State& s) { s.insert_or_assign("shared/a.bias", at::ones({3})); }),
              HasSubstr("shared/a.bias to be float32 of shape [64], got [3]"));
  EXPECT_THAT(refused([](State& s) { s.insert("shared/more", at::ones({3})); }),
              HasSubstr("a state of 4 tensors, as the model has, got 5"));
  EXPECT_THAT(
      refused([](State& s) { s.insert_or_assign("ranks", at::full({}, 3, at::kLong)); }, true),
      HasSubstr("the own state of rank 1 of 2, got that of rank 1 of 3"));
}

// ---- settings

TEST(DiLoCo, DifferentSettingsAreRefusedOnAllRanks) {
  const auto refused = [](const auto& change) {
    const auto raised = refusals(3, [&](int rank, const std::shared_ptr<Exchange>& exchange) {
      const Model model(rank);
      DiLoCoOptions options = options_of("fp4", 4);
      DiLoCoTensors tensors = model.tensors();
      if (rank == 2) change(options, tensors);
      DiLoCo(exchange, tensors, nullptr, options);
    });
    EXPECT_EQ(raised[0], raised[1]);
    return raised;
  };
  using Options = DiLoCoOptions;
  EXPECT_THAT(
      refused([](Options& o, auto&) { o.every = 5; }),
      Each(HasSubstr("the same settings on all ranks, got every: 4 on rank 0, 5 on rank 2")));
  EXPECT_THAT(refused([](Options& o, auto&) { o.outer.lr = 0.5; }),
              Each(HasSubstr("outer lr: 0.6")));
  EXPECT_THAT(refused([](Options& o, auto&) { o.codec.seed = 5; }),
              Each(HasSubstr("codec seed: 0 on rank 0, 5 on rank 2")));
  EXPECT_THAT(refused([](Options& o, auto&) { o.codec = Codec::parse("rate2"); }),
              Each(HasSubstr("codec kind: float on rank 0, uniform on rank 2")));
  EXPECT_THAT(refused([](Options&, DiLoCoTensors& t) {
                t.parameters.pop_back(), t.parameters.erase(t.parameters.begin() + 1);
              }),
              Each(HasSubstr("parameters: 3 of ")));
  // One rank's alone is wrong: the others hear why.
  const auto wrong = refused([](Options& o, auto&) { o.fragments = 9; });
  EXPECT_EQ(wrong[2], "[DiLoCo] expected fragments to be 1 to every, 4, got 9");
  EXPECT_EQ(wrong[0], "[DiLoCo] failed on rank 2: " + wrong[2]);
}

TEST(DiLoCo, WrongArgumentsAreRefused) {
  const auto refused = [](const auto& change) {
    return refusals(1, [&](int, const std::shared_ptr<Exchange>& exchange) {
      const Model model(0);
      DiLoCoOptions options = options_of("fp4", 4);
      DiLoCoTensors tensors = model.tensors();
      change(options, tensors);
      DiLoCo(exchange, tensors, nullptr, options);
    })[0];
  };
  using Options = DiLoCoOptions;
  EXPECT_THAT(refused([](Options& o, auto&) { o.every = 0; }), HasSubstr("every"));
  EXPECT_THAT(refused([](Options& o, auto&) { o.overlap = 4; }), HasSubstr("overlap"));
  EXPECT_THAT(refused([](Options& o, auto&) { o.feedback = 0.5; }), HasSubstr("error feedback"));
  EXPECT_THAT(refused([](Options& o, auto&) { o.outer.momentum = 1; }), HasSubstr("momentum"));
  EXPECT_THAT(refused([](Options& o, auto&) { o.outer.lr = NAN; }), HasSubstr("lr"));
  EXPECT_THAT(refused([](Options& o, auto&) { o.fragments = 3; }),
              HasSubstr("fragments of at least one module each, got 3 for 2 modules"));
  EXPECT_THAT(refused([](Options&, DiLoCoTensors& t) { t.parameters.clear(); }),
              HasSubstr("parameters that require a gradient"));
  EXPECT_THAT(refused([](Options&, DiLoCoTensors& t) {
                t.parameters.emplace_back("double", at::ones({3}, at::kDouble).requires_grad_());
              }),
              HasSubstr("float32, bfloat16 or float16, got Double for double"));
}

// ---- faults

// What each rank raises when `break_it` is called before its third round, which ranks take where it
// returns true, and that what it has is
// the state of the second.
template <typename Break>
std::vector<std::string> raised_in_third_round(const std::shared_ptr<MemoryNetwork>& net,
                                               DiLoCoOptions options, const Break& break_it) {
  std::vector<std::string> raised(3);
  std::barrier all_here(3);
  run_models(3, net, options, [&](int rank, const Model&, DiLoCo& diloco) {
    diloco.step();
    diloco.step();
    diloco.synchronize();
    const DiLoCo::State before = diloco.state_dict();
    try {
      all_here.arrive_and_wait();  // so that nobody is still in the second round
      if (!break_it(rank)) return;
      for (int step = 0; step < 4; ++step) diloco.step();
    } catch (const ExchangeError& error) {
      raised[static_cast<std::size_t>(rank)] = error.what();
      EXPECT_THROW(diloco.step(), ExchangeError);
    }
    const DiLoCo::State after = diloco.state_dict();
    for (const auto& entry : before) EXPECT_TRUE(at::equal(entry.value(), after.at(entry.key())));
    EXPECT_EQ(before.size(), after.size());
  });
  return raised;
}

TEST(DiLoCoFaults, ALostRankEndsTheRoundOnAll) {
  for (const char* const codec : {"fp4", "rate2", "topk"})
    for (const std::int64_t overlap : {0, 1}) {
      const auto net = network();
      DiLoCoOptions options = options_of(codec, 2, 1, overlap);
      options.codec.error_feedback = true;
      const auto raised = raised_in_third_round(net, options, [&](int rank) {
        if (rank == 1) net->cut_off(1);
        return rank != 1;
      });
      for (const int rank : {0, 2})
        EXPECT_THAT(raised[static_cast<std::size_t>(rank)],
                    AllOf(HasSubstr("[DiLoCo] an exchange did not come to its end"),
                          HasSubstr("rank 1 is gone or does not answer")));
    }
}

TEST(DiLoCoFaults, DamagedBytesEndTheRoundOnAll) {
  for (const char* const codec : {"fp4", "rate2", "topk"}) {
    const auto net = network();
    std::atomic<bool> is_on = false;
    net->change = [&](int from, int to, int, MemoryNetwork::Message& message) {
      if (is_on && from == 2 && to == 0 && message.size() > exchange::kHeaderBytes + 100)
        message[exchange::kHeaderBytes + 90] ^= 0x10;
    };
    DiLoCoOptions options = options_of(codec, 2);
    const auto raised = raised_in_third_round(net, options, [&](int) { return is_on = true; });
    EXPECT_THAT(raised, Each(AllOf(HasSubstr("[DiLoCo] an exchange did not come to its end"),
                                   HasSubstr("from rank 2"))));
  }
}

}  // namespace
}  // namespace slimgrad
