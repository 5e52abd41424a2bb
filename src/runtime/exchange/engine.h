// The two-phase exchange of a group, in stages that run beside each other.
//
// An exchange has up to three stages, each a thread that takes exchanges in the order in which they
// were asked for, which is the same on every rank:
//
//   spread   code a shard for each peer and send it
//   reduce   add up what peers sent for the own shard, in the order of ranks; code the sum, send it
//   gather   decode the other shards to where they belong; say that all is well, and hear it
//
// Where the codec sends to all (topk), a rank codes all it has, once, and adds up what all sent.
//
// So a frame is on the wire while the next is coded, and one exchange is reduced while the next is
// spread. In front of each stage that receives, a thread asks for messages ahead of time (message.h
// says why), of this exchange and the next.
//
// Threads start with the first exchange and end when there has been nothing to do for a moment. An
// idle engine holds no thread and no reference to its group, so that a group that is destroyed is
// gone. Exchanges under way hold the group.
//
// Whoever fails tells all others why, in the place of its next header, and every exchange of the
// group fails from then on with the same reason. The group's store settles which cause was first.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_ENGINE_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_ENGINE_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <slimgrad/exchange.h>
#include <slimgrad/seed.h>

#include "runtime/exchange/buffers.h"
#include "runtime/exchange/faults.h"
#include "runtime/exchange/job.h"

namespace slimgrad::exchange {

// The seed of all draws of an exchange; and of what a rank, counted in the whole job, as replicas
// of a group have equal ranks in it, codes in one stage for one reader, or for all (-1).
inline std::uint64_t exchange_seed(std::int64_t codec_seed, std::string_view op,
                                   std::string_view group, std::string_view counted,
                                   std::uint64_t count) {
  return derive_seed(static_cast<std::uint64_t>(codec_seed), {op, group, counted, count});
}
inline std::uint64_t message_seed(std::uint64_t exchange_seed, int global_rank, int stage,
                                  int reader) {
  return derive_seed(exchange_seed, {global_rank, stage, reader});
}

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // global_ranks: those of the group's ranks in the whole job, which is what users know.
  Engine(const Group& group, std::vector<int> global_ranks);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<int>& peers() const { return peers_; }
  const std::string& group_name() const { return group_name_; }
  int global_rank() const { return global_ranks_[rank_]; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  // Empty when it was destroyed.
  Group group() const { return group_.lock(); }
  int global_rank(int rank) const { return global_ranks_[rank]; }
  std::uint64_t num_jobs() const;
  // Counts an exchange that goes by collectives of the group instead (device_exchange.h).
  std::uint64_t count_job();
  bool serves(const Group& group) const { return group_.lock() == group; }

  // Throws InvalidArgument unless tensors on the CPU travel over Gloo, or over a backend of a test.
  void check_backend() const;
  // Starts the exchanges, in this order. Throws ExchangeError if one of the group failed before.
  void submit(const std::vector<JobPtr>& jobs);

 private:
  // A message that was asked for: room for it, and when it is there.
  struct Asked {
    int peer = 0;
    at::Tensor buffer;
    std::uint64_t most_bytes = 0;  // of the body
    Work work;
  };
  // A thread that takes jobs in their order.
  struct Worker {
    const char* name;
    void (Engine::*run)(Job&);
    std::deque<JobPtr> jobs;
    bool has_thread = false;
  };
  struct Failed {};  // thrown by what waits when another thread has failed

  void work(Worker& worker);
  void spread(Job& job);
  void reduce(Job& job);
  void gather(Job& job);
  void ask_for_sums(Job& job);
  void ask_for_shards(Job& job);
  void finish(Job& job, const std::map<int, Asked>& finished);

  at::Tensor code(Job& job, std::size_t index, const Frame& frame, Stage stage, std::uint64_t seed);
  void sum(Job& job, std::size_t index, const Frame& frame);
  void decode(Job& job, int peer, std::size_t index, const Frame& frame,
              const std::vector<at::Tensor>& tensors, bool add);

  Header header_of(const Job& job, MessageKind kind) const;
  void send(Job& job, int peer, Stage stage, const at::Tensor& message);
  Asked ask(Job& job, int peer, Stage stage, std::uint64_t most_bytes);
  void queue(std::deque<Asked>& asked, Asked message);
  Asked next(std::deque<Asked>& asked);
  // Waits for the message. The header is checked.
  Header receive(const Asked& asked, const Header& expected);
  void wait_for(const Work& work, int peer);
  std::uint64_t seed_of(const Job& job, Stage stage, int reader) const;

  // Waits until `holds`, with the lock. Throws Failed if the engine fails meanwhile.
  template <typename Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, const Condition& holds);
  void fail(const Job& job, Fault fault);
  Fault loss_of(int peer, const std::exception& error) const;

  const c10::weak_intrusive_ptr<c10d::ProcessGroup> group_;
  const std::string group_name_;
  const int rank_, size_;
  const std::vector<int> global_ranks_;
  std::vector<int> peers_;
  Buffers buffers_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<Worker, 5> workers_;
  std::deque<Asked> sums_, shards_;
  std::map<std::uint64_t, JobPtr> running_;
  std::uint64_t num_jobs_ = 0;
  std::set<Work> waited_for_;  // what a failure has to wake
  std::vector<Fault> faults_;
  std::string error_;  // empty: none
};

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_ENGINE_H_
