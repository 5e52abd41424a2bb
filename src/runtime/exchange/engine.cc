#include "runtime/exchange/engine.h"

#include <ATen/core/grad_mode.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "runtime/exchange/frame_coding.h"

namespace slimgrad::exchange {
namespace {

using std::chrono::milliseconds;

// The number of frames of each peer that are asked for before they are needed.
constexpr std::size_t kAhead = 16;
// A rank that stops waits for the others to hear why; for a cause that was another's less long. One
// that lost another rank waits to hear why that stopped.
constexpr milliseconds kLastWords{5000}, kRelay{1000}, kFirstWords{1500};

std::size_t most_frames(const std::map<int, std::vector<Frame>>& shards) {
  std::size_t most = 0;
  for (const auto& [peer, frames] : shards) most = std::max(most, frames.size());
  return most;
}

}  // namespace

// ---- threads -----------------------------------------------------------------------------------

Engine::Engine(const Group& group, std::vector<int> global_ranks)
    : group_(group),
      group_name_(group->getGroupName()),
      rank_(group->getRank()),
      size_(group->getSize()),
      global_ranks_(std::move(global_ranks)),
      workers_{{{"slimgrad-spread", &Engine::spread, {}},
                {"slimgrad-reduce", &Engine::reduce, {}},
                {"slimgrad-gather", &Engine::gather, {}},
                {"slimgrad-sums", &Engine::ask_for_sums, {}},
                {"slimgrad-shards", &Engine::ask_for_shards, {}}}} {
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) peers_.push_back(rank);
}

void Engine::check_backend() const {
  const Group group = group_.lock();
  if (!group) return;  // submit() says that it was destroyed
  std::string name = "none";
  try {
    name = group->getBackend(c10::DeviceType::CPU)->getBackendName();
  } catch (const c10::Error&) {
  }
  check(name == "gloo", "distributed", "a group with Gloo for tensors on the CPU", name,
        ": init_process_group('cpu:gloo,cuda:nccl'), or new_group(backend='gloo') beside it");
}

std::uint64_t Engine::count_job() {
  const std::lock_guard lock(mutex_);
  return num_jobs_++;
}

std::uint64_t Engine::num_jobs() const {
  const std::lock_guard lock(mutex_);
  return num_jobs_;
}

void Engine::submit(const std::vector<JobPtr>& jobs) {
  const std::lock_guard lock(mutex_);
  for (const JobPtr& job : jobs) {
    if (!error_.empty())
      throw ExchangeError("[" + job->op +
                          "] an exchange of this group has failed before: " + error_);
    job->group_ = group_.lock();
    if (!job->group_) throw ExchangeError("[" + job->op + "] the process group was destroyed");
    job->number_ = num_jobs_++;
    job->settings_hash_ = settings_hash(job->settings);
    running_[job->number_] = job;
    for (Worker& worker : workers_) {
      worker.jobs.push_back(job);
      if (worker.has_thread) continue;
      worker.has_thread = true;
      std::thread([self = shared_from_this(), &worker] { self->work(worker); }).detach();
    }
  }
  changed_.notify_all();
}

void Engine::work(Worker& worker) {
  pthread_setname_np(pthread_self(), worker.name);
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!changed_.wait_for(lock, kIdle, [&] { return !worker.jobs.empty(); })) {
      worker.has_thread = false;
      return;
    }
    JobPtr job = std::move(worker.jobs.front());
    worker.jobs.pop_front();
    // Once there is a fault no exchange ends well, though its cause may not be settled yet: what is
    // sent for a later one would be taken for another fault.
    if (!faults_.empty()) continue;
    lock.unlock();
    try {
      (this->*worker.run)(*job);
    } catch (const Failed&) {  // whoever failed tells all
    } catch (Fault& fault) {
      fault.is_indirect = fault.is_loss && worker.run == &Engine::gather;
      fail(*job, fault);
    } catch (const std::exception& error) {
      fail(*job, {first_line(error)});
    }
    job.reset();
    lock.lock();
  }
}

template <typename Condition>
void Engine::wait_until(std::unique_lock<std::mutex>& lock, const Condition& holds) {
  changed_.wait(lock, [&] { return !error_.empty() || holds(); });
  if (!error_.empty()) throw Failed();
}

// ---- stages ------------------------------------------------------------------------------------

std::uint64_t Engine::seed_of(const Job& job, Stage stage, int reader) const {
  return message_seed(job.draws, global_rank(), stage, reader);
}

void Engine::spread(Job& job) {
  for (std::size_t index = 0; index < job.for_all.size(); ++index) {
    const Frame& frame = job.for_all[index];
    const at::Tensor message = code(job, index, frame, kSpread, seed_of(job, kSpread, -1));
    for (const int peer : peers_) send(job, peer, kSpread, message);
  }
  for (std::size_t index = 0; index < most_frames(job.outgoing); ++index)
    // Each rank begins with the one after it, so that not all send to the same.
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const auto found = job.outgoing.find(peer);
      if (found == job.outgoing.end() || index >= found->second.size()) continue;
      const at::Tensor message =
          code(job, index, found->second[index], kSpread, seed_of(job, kSpread, peer));
      send(job, peer, kSpread, message);
    }
  const std::lock_guard lock(mutex_);
  job.spread_done_ = true;
  changed_.notify_all();
}

void Engine::reduce(Job& job) {
  if (!job.for_all.empty()) {  // before it is summed up
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return job.spread_done_; });
  }
  for (std::size_t index = 0; index < job.own.size(); ++index) {
    const Frame& frame = job.own[index];
    if (!job.summed_from.empty()) sum(job, index, frame);
    if (job.readers.empty()) continue;
    const at::Tensor message = code(job, index, frame, kGather, seed_of(job, kGather, -1));
    for (const int peer : job.readers) send(job, peer, kGather, message);
  }
  const std::lock_guard lock(mutex_);
  job.reduce_done_ = true;
  changed_.notify_all();
}

void Engine::gather(Job& job) {
  std::map<int, Asked> finished;
  for (const int peer : peers_) finished[peer] = ask(job, peer, kFinish, 0);
  {  // before what was to be sent is written over
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return job.spread_done_; });
  }
  for (std::size_t index = 0; index < most_frames(job.incoming); ++index)
    for (const auto& [peer, frames] : job.incoming) {
      if (index >= frames.size()) continue;
      std::vector<at::Tensor> tensors;
      for (const Piece& piece : frames[index]) tensors.push_back(piece.values);
      decode(job, peer, index, frames[index], tensors, false);
    }
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return job.reduce_done_; });
  }
  finish(job, finished);
}

// All ranks have all that they need, or none believes it.
void Engine::finish(Job& job, const std::map<int, Asked>& finished) {
  const Header done = header_of(job, MessageKind::kDone);
  for (const int peer : peers_) send(job, peer, kFinish, header_alone(done));
  for (const auto& [peer, asked] : finished) {
    receive(asked, done);
    buffers_.give_back(asked.buffer);
  }
  for (const Job::Sent& sent : job.sends_) {
    try {
      wait_for(sent.work, -1);
    } catch (const Fault&) {  // to one that is gone, with all it needed
    }
  }
  for (at::Tensor& buffer : job.buffers_) buffers_.give_back(std::move(buffer));
  job.sends_.clear();
  job.buffers_.clear();
  {
    const std::lock_guard lock(mutex_);
    running_.erase(job.number_);
    job.group_.reset();
  }
  job.outcome.complete();
}

void Engine::ask_for_sums(Job& job) {
  for (const Frame& frame : job.own)
    for (const int peer : job.summed_from)
      queue(sums_, ask(job, peer, kSpread, frame_bound(frame, job.type)));
}

void Engine::ask_for_shards(Job& job) {
  for (std::size_t index = 0; index < most_frames(job.incoming); ++index)
    for (const auto& [peer, frames] : job.incoming)
      if (index < frames.size())
        queue(shards_, ask(job, peer, kGather, frame_bound(frames[index], job.type)));
}

// ---- messages ----------------------------------------------------------------------------------

Header Engine::header_of(const Job& job, MessageKind kind) const {
  return {
      .kind = kind, .number = job.number_, .settings = job.settings_hash_, .text = job.settings};
}

void Engine::send(Job& job, int peer, Stage stage, const at::Tensor& message) {
  Work work;
  try {
    work = send_to(job.group_, message, peer, stage);
  } catch (const std::exception& error) {
    throw loss_of(peer, error);
  }
  job.sent_ += message.numel();
  const std::lock_guard lock(job.sends_mutex_);
  job.sends_.push_back({message, std::move(work)});
}

Engine::Asked Engine::ask(Job& job, int peer, Stage stage, std::uint64_t most_bytes) {
  const auto size = static_cast<std::int64_t>(kHeaderBytes + most_bytes);
  Asked asked{peer, buffers_.take(size), most_bytes, {}};
  // So that an old header is not taken for the new one.
  std::memset(bytes_of(asked.buffer), 0, kHeaderBytes);
  std::vector<at::Tensor> messages = {asked.buffer.narrow(0, 0, size)};
  try {
    asked.work = job.group_->recv(messages, peer, kFirstTag + stage);
  } catch (const std::exception& error) {
    throw loss_of(peer, error);
  }
  return asked;
}

void Engine::queue(std::deque<Asked>& asked, Asked message) {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return asked.size() < kAhead * peers_.size(); });
  asked.push_back(std::move(message));
  changed_.notify_all();
}

Engine::Asked Engine::next(std::deque<Asked>& asked) {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return !asked.empty(); });
  Asked message = std::move(asked.front());
  asked.pop_front();
  changed_.notify_all();
  return message;
}

void Engine::wait_for(const Work& work, int peer) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) throw Failed();
    waited_for_.insert(work);
  }
  bool is_there = false;
  std::optional<Fault> loss;
  try {
    is_there = work->wait();
  } catch (const std::exception& error) {
    loss = loss_of(std::max(peer, 0), error);
  }
  const std::lock_guard lock(mutex_);
  waited_for_.erase(work);
  if (!error_.empty()) throw Failed();
  if (loss) throw *loss;
  if (!is_there) throw Failed();
}

Header Engine::receive(const Asked& asked, const Header& expected) {
  wait_for(asked.work, asked.peer);
  const std::string sender = "rank " + std::to_string(global_ranks_[asked.peer]);
  try {
    const Header header = read_header(bytes_of(asked.buffer));
    if (header.kind == MessageKind::kStopped) throw Fault{header.text, false, true};
    check_header(header, expected, asked.most_bytes);
    return header;
  } catch (const ExchangeError& error) {
    throw Fault{sender + " sent " + error.what()};
  }
}

// ---- faults ------------------------------------------------------------------------------------

Fault Engine::loss_of(int peer, const std::exception& error) const {
  return {"rank " + std::to_string(global_ranks_[peer]) +
              " is gone or does not answer: " + first_line(error),
          true};
}

// Tells the other ranks, then whoever waits for an exchange.
void Engine::fail(const Job& job, Fault fault) {
  Group group;
  {
    std::unique_lock lock(mutex_);
    faults_.push_back(fault);
    changed_.notify_all();
    if (faults_.size() > 1) return;  // the first one waits for others, or has told all
    if (fault.is_loss) {
      // A rank that is gone may have stopped for a reason, which others know.
      const auto known = [&] { return std::ranges::find(faults_, false, &Fault::is_loss); };
      changed_.wait_for(lock, kFirstWords, [&] { return known() != faults_.end(); });
      if (known() != faults_.end())
        fault = *known();
      else
        fault =
            *std::ranges::min_element(faults_, {}, &Fault::is_indirect);  // the first direct one
    }
    group = job.group_;
  }
  const std::string own = fault.is_report ? fault.text : "[" + job.op + "] " + fault.text;
  const std::string told =
      fault.is_report ? own : "rank " + std::to_string(global_rank()) + " stopped: " + own;
  const std::string first = settled_cause(group, told);
  const std::string text = first == told ? own : first;
  std::map<std::uint64_t, JobPtr> running;
  std::set<Work> waited_for;
  {
    const std::lock_guard lock(mutex_);
    error_ = text;
    running.swap(running_);
    waited_for = waited_for_;
    sums_.clear();
    shards_.clear();
  }
  changed_.notify_all();
  for (const Work& work : waited_for) work->abort();
  tell_all(group, first, fault.is_report ? kRelay : kLastWords);
  for (const auto& [number, other] : running) {
    other->outcome.fail(text);
    const std::lock_guard lock(other->sends_mutex_);
    for (const Job::Sent& sent : other->sends_) sent.work->abort();
  }
}

}  // namespace slimgrad::exchange
