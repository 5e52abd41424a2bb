// The exchange between ranks that are threads: sums to the bit, faults named on every rank. Real
// processes over Gloo are in tests/python/distributed.
#include <slimgrad/exchange.h>
#include <slimgrad/tensor_coder.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "memory_group.h"
#include "runtime/exchange/message.h"

namespace slimgrad {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

at::Tensor gradient(int rank, std::int64_t size, at::ScalarType type = at::kFloat) {
  at::manual_seed(static_cast<std::uint64_t>(rank) + 1);
  return at::randn({size}).to(type);
}

std::shared_ptr<MemoryNetwork> network() { return std::make_shared<MemoryNetwork>(); }

// What each rank raises; "" for none.
template <typename Run>
std::vector<std::string> raised_by(int size, const std::shared_ptr<MemoryNetwork>& net,
                                   const Run& run) {
  std::vector<std::string> raised(static_cast<std::size_t>(size));
  run_ranks(size, net, [&](int rank, const Group& group) {
    try {
      run(rank, group);
    } catch (const ExchangeError& error) {
      raised[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return raised;
}

class Sums : public ::testing::TestWithParam<int> {};

TEST_P(Sums, LosslessIsTheSumInTheOrderOfRanks) {
  const int size = GetParam();
  constexpr std::array<std::int64_t, 3> kLengths = {700'001, 100, 9'000};
  std::vector<std::vector<at::Tensor>> inputs;
  std::vector<at::Tensor> sums;
  for (int rank = 0; rank < size; ++rank) {
    inputs.emplace_back();
    for (std::size_t i = 0; i < kLengths.size(); ++i)
      inputs.back().push_back(gradient(10 * rank + static_cast<int>(i), kLengths[i]));
  }
  for (std::size_t i = 0; i < kLengths.size(); ++i) {
    sums.push_back(inputs[0][i].clone());
    for (int rank = 1; rank < size; ++rank) sums[i].add_(inputs[static_cast<std::size_t>(rank)][i]);
  }
  run_ranks(size, network(), [&](int rank, const Group& group) {
    const auto exchange = Exchange::of(group);
    const std::vector<at::Tensor>& mine = inputs[static_cast<std::size_t>(rank)];
    exchange->all_reduce(mine, Codec::parse("lossless"))->wait();
    for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_TRUE(at::equal(mine[i], sums[i])) << i;
  });
}

TEST_P(Sums, AllRanksEndWithTheSameBits) {
  const int size = GetParam();
  for (const char* const name : {"uniform4", "packed8", "fp6", "1-3-2", "pruned", "rate2"})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      std::vector<at::Tensor> results(static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank)
        results[static_cast<std::size_t>(rank)] = gradient(rank, 600'000, type);
      const at::Tensor first = results[0].clone();
      run_ranks(size, network(), [&](int rank, const Group& group) {
        const at::Tensor& mine = results[static_cast<std::size_t>(rank)];
        Exchange::of(group)
            ->all_reduce({mine}, Codec::parse(name), {.step = 3, .divide_by = double(size)})
            ->wait();
      });
      for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0])) << name;
      if (size == 1) {  // nothing is sent, nothing lost
        EXPECT_TRUE(at::equal(results[0], first));
      }
    }
}

// What a rank keeps is in the sum: it is not cut to k once more.
TEST_P(Sums, OfTheLargestHaveAllThatRanksKept) {
  const int size = GetParam();
  for (const bool feeds_back : {false, true}) {
    Codec codec = Codec::parse("topk");
    codec.error_feedback = feeds_back;
    constexpr std::array<std::int64_t, 3> kLengths = {700'001, 100, 9'000};
    std::vector<std::vector<at::Tensor>> results, residuals;
    std::vector<at::Tensor> wanted, owed;  // owed[i]: what all ranks have not sent of tensor i
    for (const std::int64_t length : kLengths) wanted.push_back(at::zeros({length}));
    for (const std::int64_t length : kLengths) owed.push_back(at::zeros({length}));
    for (int rank = 0; rank < size; ++rank) {
      TensorCoder coder(codec);
      std::vector<at::Tensor>& mine = results.emplace_back();
      residuals.emplace_back();
      for (std::size_t i = 0; i < kLengths.size(); ++i) {
        mine.push_back(gradient(10 * rank + static_cast<int>(i), kLengths[i]));
        residuals.back().push_back(at::zeros({kLengths[i]}));
        owed[i].add_(mine[i]);
      }
      const auto kept = size > 1 ? coder.decode(coder.encode(mine), mine) : mine;
      for (std::size_t i = 0; i < kLengths.size(); ++i) {
        wanted[i].add_(kept[i]);
        owed[i].sub_(kept[i]);
      }
    }
    std::atomic<std::int64_t> sent = 0;
    run_ranks(size, network(), [&](int rank, const Group& group) {
      const auto mine = static_cast<std::size_t>(rank);
      const auto pending = Exchange::of(group)->all_reduce(
          results[mine], codec, {}, feeds_back ? residuals[mine] : std::vector<at::Tensor>());
      pending->wait();
      if (rank == 0) sent = pending->sent_bytes();
    });
    for (int rank = 0; rank < size; ++rank)
      for (std::size_t i = 0; i < kLengths.size(); ++i)
        EXPECT_TRUE(at::equal(results[static_cast<std::size_t>(rank)][i], wanted[i])) << i;
    // All of it to all others: 0.149 bits of each value and headers.
    EXPECT_NEAR(double(sent) / std::max(size - 1, 1), size > 1 ? 16'000 : 0, 1'000);
    if (!feeds_back) continue;
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      for (int rank = 0; rank < size; ++rank)
        owed[i].sub_(residuals[static_cast<std::size_t>(rank)][i]);
      EXPECT_LT(owed[i].abs().max().item<double>(), 1e-5) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sums, ::testing::Values(1, 2, 3, 5));

TEST(Exchange, ScattersGathersAndBroadcasts) {
  run_ranks(3, network(), [&](int rank, const Group& group) {
    const auto exchange = Exchange::of(group);
    const Codec exact = Codec::parse("lossless");
    std::vector<std::vector<at::Tensor>> inputs;
    for (int r = 0; r < 3; ++r) inputs.push_back({at::full({5'000}, 10.0 * rank + r)});
    const at::Tensor sum = at::zeros({5'000});
    exchange->reduce_scatter({sum}, inputs, exact)->wait();
    EXPECT_TRUE(at::equal(sum, at::full({5'000}, 30.0 + 3 * rank)));

    std::vector<std::vector<at::Tensor>> outputs;
    for (int r = 0; r < 3; ++r) outputs.push_back({at::zeros({100 * (r + 1)})});
    exchange->all_gather(outputs, {at::full({100 * (rank + 1)}, double(rank))}, exact)->wait();
    for (int r = 0; r < 3; ++r)
      EXPECT_TRUE(
          at::equal(outputs[static_cast<std::size_t>(r)][0], at::full({100 * (r + 1)}, double(r))));

    const at::Tensor copied = at::full({7'000}, double(rank));
    exchange->broadcast({copied}, exact, 2)->wait();
    EXPECT_TRUE(at::equal(copied, at::full({7'000}, 2.0)));
  });
}

TEST(Exchange, WhatRoundingLostIsSentLater) {
  // bfloat16 cannot add the smallest values to what is owed, which float32 holds: with 4,000 steps
  // they would be missed.
  for (const auto& [type, steps] : {std::pair(at::kFloat, 200), std::pair(at::kBFloat16, 4000)}) {
    std::vector<at::Tensor> means(2);
    const at::Tensor ramp = at::linspace(-1, 1, 20'000).to(type);
    run_ranks(2, network(), [&](int rank, const Group& group) {
      const auto exchange = Exchange::of(group);
      Codec codec = Codec::parse("uniform2");
      codec.error_feedback = true;
      const at::Tensor constant = ramp * (1 + rank);
      const at::Tensor residual = at::zeros_like(constant, at::kFloat);
      at::Tensor total = at::zeros_like(constant, at::kDouble);
      for (int step = 0; step < steps; ++step) {
        const at::Tensor x = constant.clone();
        exchange->all_reduce({x}, codec, {.step = step, .divide_by = 2}, {residual})->wait();
        total.add_(x);
      }
      // The sum of all steps differs from the exact one by what is left in residuals: at most a
      // step of the grid for each of the two roundings, 2 and 3 here.
      EXPECT_LT((total / steps - ramp.to(at::kDouble) * 1.5).abs().max().item<double>(),
                5.0 / steps);
      means[static_cast<std::size_t>(rank)] = total;
    });
    EXPECT_TRUE(at::equal(means[0], means[1]));
  }
}

// NaN makes a rank's piece lossless, with all of its zeros and their signs.
TEST(Exchange, OfTheLargestAndLosslessAllHaveTheSameBits) {
  std::vector<at::Tensor> results(3);
  run_ranks(3, network(), [&](int rank, const Group& group) {
    at::Tensor& x = results[static_cast<std::size_t>(rank)] = gradient(rank, 9'000);
    if (rank < 2) {
      x.mul_(x.abs() > 1);  // zeros of both signs
      x[7 + rank] = x[8] = std::numeric_limits<float>::quiet_NaN();
    }
    Codec codec = Codec::parse("topk");
    codec.error_feedback = false;
    Exchange::of(group)->all_reduce({x}, codec)->wait();
  });
  EXPECT_TRUE(results[0][8].isnan().item<bool>());
  for (const at::Tensor& x : results)
    EXPECT_TRUE(at::equal(x.view(at::kInt), results[0].view(at::kInt)));
}

TEST(Exchange, FuturesGetTheirResultAndHeadersAreCounted) {
  const auto net = network();
  std::array<std::atomic<std::int64_t>, 2> sent{};
  net->change = [&](int from, int, int, const MemoryNetwork::Message& message) {
    sent[static_cast<std::size_t>(from)] += static_cast<std::int64_t>(message.size());
  };
  run_ranks(2, net, [&](int rank, const Group& group) {
    const at::Tensor x = at::ones({10'000}), half = at::ones({10}, at::kHalf);
    const auto pending = Exchange::of(group)->all_reduce({x, half}, Codec::parse("lossless"));
    const auto future = pending->future(x);
    future->wait();
    EXPECT_TRUE(at::equal(future->value().toTensor(), at::full({10'000}, 2.0)));
    EXPECT_TRUE(pending->is_complete());
    EXPECT_TRUE(pending->wait_for(std::chrono::milliseconds(0)));
    EXPECT_EQ(pending->sent_bytes(), sent[static_cast<std::size_t>(rank)]);
  });
}

// ---- faults
// --------------------------------------------------------------------------------------

TEST(ExchangeFaults, SettingsThatDifferAreRefusedWithBoth) {
  struct Case {
    std::function<void(Codec&, ExchangeOptions&)> change;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {[](Codec&, ExchangeOptions& o) { o.divide_by = 2; }, "divide_by"},
      {[](Codec& c, ExchangeOptions&) { c.seed = 7; }, "seed"},
      {[](Codec&, ExchangeOptions& o) { o.step = 4; }, "step"},
      {[](Codec& c, ExchangeOptions&) { c.coder = EntropyCoder::kHuffman; }, "coder"},
      {[](Codec& c, ExchangeOptions&) { c.model = TableModel::kLaplace; }, "model"},
      {[](Codec& c, ExchangeOptions&) { c.bits = 5; }, "bits"},
      {[](Codec& c, ExchangeOptions&) { c.min_elements = 3; }, "min_elements"},
  };
  for (const Case& differing : cases) {
    const auto raised = raised_by(3, network(), [&](int rank, const Group& group) {
      Codec codec = Codec::parse("uniform4");
      ExchangeOptions options{.step = 3};
      if (rank == 1) differing.change(codec, options);
      Exchange::of(group)->all_reduce({gradient(rank, 20'000)}, codec, options)->wait();
    });
    EXPECT_THAT(raised, Each(AllOf(HasSubstr("a header with "), HasSubstr(differing.expected))));
  }
}

TEST(ExchangeFaults, DamageIsNamedByAll) {
  struct Case {
    int stage;
    std::function<void(MemoryNetwork::Message&)> change;
    const char* expected;
  };
  const auto edited = [](auto edit) {
    return [edit](MemoryNetwork::Message& message) {
      exchange::Header header = exchange::read_header(message.data());
      edit(header);
      exchange::write_header(header, message.data());
    };
  };
  using exchange::Header;
  const std::vector<Case> cases = {
      {0, [](auto& m) { m[m.size() * 3 / 4] ^= 16; }, "frame 0 from rank 1: [decode] the checksum"},
      {1, [](auto& m) { m[m.size() * 3 / 4] ^= 16; }, "frame 0 from rank 1: [decode] the checksum"},
      {0, [](auto& m) { m[20] ^= 1; }, "rank 1 sent a header that is damaged, or none"},
      {2, [](auto& m) { m[20] ^= 1; }, "rank 1 sent a header that is damaged, or none"},
      {0, edited([](Header& h) { h.num_bytes = std::uint64_t{1} << 40; }),
       "rank 1 sent a header with 1099511627776 bytes announced, expected"},
      {0, edited([](Header& h) { h.frame = 7; }), "rank 1 sent a header with frame 7, expected 0"},
      {1, edited([](Header& h) { h.number = 77; }),
       "rank 1 sent a header with exchange 77, expected 2"},
  };
  for (const char* const name : {"uniform8", "rate2", "topk"})
    for (const Case& damage : cases) {
      Codec codec = Codec::parse(name);
      codec.error_feedback = false;
      if (damage.stage == 1 && codec.sends_to_all()) continue;  // the sum is not sent
      const auto net = network();
      std::map<int, int> sent;
      std::mutex mutex;
      net->change = [&](int from, int to, int tag, MemoryNetwork::Message& message) {
        if (from != 1 || tag != 0x5347 + damage.stage) return;
        const std::lock_guard lock(mutex);
        // The third exchange; headers alone are what a rank that stops sends.
        if (sent[to]++ == 2 && (damage.stage == 2 || message.size() > exchange::kHeaderBytes))
          damage.change(message);
      };
      const auto raised = raised_by(3, net, [&](int rank, const Group& group) {
        const auto exchange = Exchange::of(group);
        for (int i = 0; i < 5; ++i) exchange->all_reduce({gradient(rank, 300'000)}, codec)->wait();
      });
      EXPECT_THAT(raised, Each(HasSubstr(damage.expected))) << name;
      // Who sent it hears it from others.
      EXPECT_THAT(raised[1], HasSubstr("stopped: [all_reduce]")) << name;
    }
}

TEST(ExchangeFaults, ARankThatIsGoneIsNamedAndTheGroupIsOfNoMoreUse) {
  const auto net = network();
  std::vector<std::string> again(3);
  const auto raised = raised_by(3, net, [&](int rank, const Group& group) {
    const auto exchange = Exchange::of(group);
    for (int i = 0; i < 100; ++i) {
      if (rank == 2 && i == 3) return net->cut_off(2);
      try {
        exchange->all_reduce({gradient(rank, 300'000)}, Codec::parse("uniform8"))->wait();
      } catch (const ExchangeError&) {
        try {
          exchange->all_reduce({at::ones({10})}, Codec::parse("lossless"));
        } catch (const ExchangeError& error) {
          again[static_cast<std::size_t>(rank)] = error.what();
        }
        throw;
      }
    }
  });
  for (const std::size_t survivor : {0, 1}) {
    EXPECT_THAT(raised[survivor], HasSubstr("rank 2 is gone or does not answer"));
    EXPECT_THAT(again[survivor], HasSubstr("an exchange of this group has failed before"));
  }
}

TEST(ExchangeFaults, MisuseIsRefusedBeforeAnythingIsSent) {
  const auto net = network();
  net->change = [](int, int, int, MemoryNetwork::Message&) { ADD_FAILURE() << "sent"; };
  run_ranks(2, net, [&](int, const Group& group) {
    const auto exchange = Exchange::of(group);
    const Codec codec = Codec::parse("uniform8");
    Codec fed_back = codec;
    fed_back.error_feedback = true;
    const at::Tensor x = at::ones({5'000});
    EXPECT_THROW(exchange->all_reduce({x}, codec, {.step = -3}), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({x}, codec, {.divide_by = 0}), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({x}, codec, {.keys = {1, 2}}), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({x}, fed_back), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({x}, fed_back, {}, {at::zeros({4'999})}), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({x.to(at::kDouble)}, codec), InvalidArgument);
    EXPECT_THROW(exchange->all_reduce({at::ones({10, 10}).slice(1, 0, 5)}, codec), InvalidArgument);
    EXPECT_THROW(exchange->broadcast({x}, codec, 2), InvalidArgument);
    EXPECT_THROW(exchange->reduce_scatter({x}, {{x}}, codec), InvalidArgument);
  });
}

// ---- what is left behind
// -------------------------------------------------------------------------

TEST(Exchange, LeavesNoThreadAndNoGroup) {
  const auto threads_of_ours = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      for (const char* const ours : {"spread", "reduce", "gather", "sums", "shards"})
        count += name == std::string("slimgrad-") + ours;
    }
    return count;
  };
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> groups(
      2, c10::weak_intrusive_ptr<c10d::ProcessGroup>(Group()));
  std::vector<std::shared_ptr<Exchange>> exchanges(2);
  run_ranks(2, network(), [&](int rank, const Group& group) {
    const auto i = static_cast<std::size_t>(rank);
    exchanges[i] = Exchange::of(group);
    exchanges[i]->all_reduce({at::ones({10'000})}, Codec::parse("uniform8"))->wait();
    groups[i] = c10::weak_intrusive_ptr<c10d::ProcessGroup>(group);
  });
  for (int tries = 0; tries < 200 && threads_of_ours() > 0; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(threads_of_ours(), 0);
  for (const auto& group : groups) EXPECT_TRUE(group.expired());
  EXPECT_THROW(exchanges[0]->all_reduce({at::ones({10})}, Codec::parse("lossless")), ExchangeError);
}

}  // namespace
}  // namespace slimgrad
