// Process groups between threads of one process: messages are copied in memory, may be changed on
// their way, and a rank may be cut off. It calls itself Gloo, whose rules it keeps: a message may
// be shorter than what was asked for.
#ifndef SLIMGRAD_TESTS_RUNTIME_EXCHANGE_MEMORY_GROUP_H_
#define SLIMGRAD_TESTS_RUNTIME_EXCHANGE_MEMORY_GROUP_H_

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace slimgrad {

class MemoryNetwork {
 public:
  using Message = std::vector<std::uint8_t>;
  // Called for every message before it is delivered.
  std::function<void(int from, int to, int tag, Message&)> change;

  void send(int from, int to, int tag, Message message) {
    if (change) change(from, to, tag, message);
    const std::lock_guard lock(mutex_);
    if (gone_.contains(to)) throw std::runtime_error("connection closed by peer");
    messages_[{from, to, tag}].push_back(std::move(message));
    changed_.notify_all();
  }
  void cut_off(int rank) {
    const std::lock_guard lock(mutex_);
    gone_.insert(rank);
    changed_.notify_all();
  }
  // Waits for the message with this number in its stream. False if `is_aborted` becomes true.
  bool receive(int from, int to, int tag, std::size_t number, at::Tensor out,
               const bool& is_aborted) {
    std::unique_lock lock(mutex_);
    auto& stream = messages_[{from, to, tag}];
    changed_.wait(lock, [&] {
      return is_aborted || stream.size() > number || gone_.contains(from) || gone_.contains(to);
    });
    if (is_aborted) return false;
    if (stream.size() <= number) throw std::runtime_error("connection closed by peer");
    const Message& message = stream[number];
    std::memcpy(out.mutable_data_ptr(), message.data(),
                std::min<std::size_t>(message.size(), static_cast<std::size_t>(out.numel())));
    return true;
  }
  std::size_t next_number(int from, int to, int tag) {
    const std::lock_guard lock(mutex_);
    return asked_[{from, to, tag}]++;
  }
  void abort(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

 private:
  using Stream = std::tuple<int, int, int>;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Stream, std::deque<Message>> messages_;
  std::map<Stream, std::size_t> asked_;
  std::set<int> gone_;
};

class MemoryBackend : public c10d::Backend {
 public:
  MemoryBackend(std::shared_ptr<MemoryNetwork> network, int rank, int size)
      : Backend(rank, size), network_(std::move(network)) {}
  const std::string getBackendName() const override { return "gloo"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const auto* const bytes = static_cast<const std::uint8_t*>(tensors[0].const_data_ptr());
    network_->send(getRank(), to, tag, {bytes, bytes + tensors[0].numel()});
    return c10::make_intrusive<Sent>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return c10::make_intrusive<Received>(network_, from, getRank(), tag, tensors[0]);
  }

 private:
  struct Sent : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
    void abort() override {}
  };
  struct Received : c10d::Work {
    Received(std::shared_ptr<MemoryNetwork> network, int from, int to, int tag, at::Tensor out)
        : network_(std::move(network)),
          from_(from),
          to_(to),
          tag_(tag),
          out_(std::move(out)),
          number_(network_->next_number(from, to, tag)) {}
    bool wait(std::chrono::milliseconds) override {
      return network_->receive(from_, to_, tag_, number_, out_, is_aborted_);
    }
    void abort() override { network_->abort(is_aborted_); }

    std::shared_ptr<MemoryNetwork> network_;
    int from_, to_, tag_;
    at::Tensor out_;
    std::size_t number_;
    bool is_aborted_ = false;
  };

  std::shared_ptr<MemoryNetwork> network_;
};

// Runs `run(rank, group)` in a thread for each rank.
template <typename Run>
void run_ranks(int size, const std::shared_ptr<MemoryNetwork>& network, const Run& run) {
  static int number = 0;
  const std::string name = "memory" + std::to_string(number++);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
      using BackendType = c10d::ProcessGroup::BackendType;
      group->setBackend(c10::DeviceType::CPU, BackendType::CUSTOM,
                        c10::make_intrusive<MemoryBackend>(network, rank, size));
      group->setDefaultBackend(BackendType::CUSTOM);
      // Each rank has an exchange of its own, though all are in one process.
      group->setGroupName(name + "/" + std::to_string(rank));
      run(rank, group);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_RUNTIME_EXCHANGE_MEMORY_GROUP_H_
