#include "runtime/exchange/stage_link.h"

#include <ATen/ops/empty.h>
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "runtime/exchange/streams.h"

namespace slimgrad::exchange {
namespace {

using std::chrono::milliseconds;

// How long a peer may take to hear of a refusal; it may be waiting for another message.
constexpr milliseconds kRefusalTime{5000};

void wait_for_work(const Work& work, std::optional<milliseconds> timeout) {
  timeout ? work->wait(*timeout) : work->wait();
}

void count_message(Traffic& traffic, const Header& header) {
  ++traffic.messages;
  traffic.bytes += static_cast<std::int64_t>(kHeaderBytes + header.num_bytes);
  traffic.plain_bytes += static_cast<std::int64_t>(header.tensor->plain_bytes());
}

}  // namespace

// What was sent and not yet taken. A thread waits for it, as Gloo's work does not tell whether it
// is complete, and memory has to be kept until it is.
class StageLink::Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  struct Sent {
    StageGroup group;  // is kept as long as it has something to send
    at::Tensor bytes;
    Work work;
    Timeout timeout;
    std::string expected;  // in words, for whoever is told that it did not come to that
  };

  void add(Sent sent) {
    const std::lock_guard lock(mutex_);
    sent_.push_back(std::move(sent));
    changed_.notify_all();
    if (has_thread_) return;
    has_thread_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  void check() {
    const std::lock_guard lock(mutex_);
    if (error_) throw BoundaryError(*error_);
  }
  void flush() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return sent_.empty(); });
    }
    check();
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "slimgrad-stage");
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, kIdle, [&] { return !sent_.empty(); })) {
      const Sent sent = sent_.front();  // stays in front until it was taken, for flush()
      lock.unlock();
      std::optional<std::string> error;
      try {
        wait_for_work(sent.work, sent.timeout);
      } catch (const std::exception& caught) {
        error = sent.expected + first_line(caught);
      }
      lock.lock();
      if (error && !error_) error_ = error;
      sent_.pop_front();
      changed_.notify_all();
    }
    has_thread_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sent> sent_;
  bool has_thread_ = false;
  std::optional<std::string> error_;
};

StageLink::StageLink(StageGroup group, int peer, const StageOptions& options, const char* owner)
    : group_(std::move(group)),
      peer_(peer),
      tag_(options.tag),
      timeout_(options.timeout),
      owner_(owner),
      outbox_(std::make_shared<Outbox>()) {
  check(static_cast<bool>(group_), owner, "a process group", "none");
  const int size = group_->getSize(), rank = group_->getRank();
  check(peer >= 0 && peer < size && peer != rank, owner,
        "the rank of another of the " + std::to_string(size) + " processes", peer, " in rank ",
        rank);
  check(!timeout_ || timeout_->count() > 0, owner, "timeout to be longer than 0", "less");
}

// ---- sending -----------------------------------------------------------------------------------

void StageLink::send(const StageMessage& message) {
  outbox_->check();
  post(message.bytes, timeout_);
  count_message(sent_, message.header);
}

void StageLink::flush() { outbox_->flush(); }

void StageLink::refuse(const std::string& reason) {
  refusal_ = reason;
  try {
    post(header_alone({.kind = MessageKind::kStopped, .text = reason}), kRefusalTime);
  } catch (const BoundaryError&) {  // the peer is gone; what is wrong here is more to the point
  }
}

void StageLink::post(const at::Tensor& bytes, Timeout timeout) {
  const auto header = static_cast<std::int64_t>(kHeaderBytes);
  const std::string expected = expectation("take", timeout);
  for (const at::Tensor& part : bytes.split_with_sizes({header, bytes.numel() - header})) {
    if (part.numel() == 0) continue;
    std::vector<at::Tensor> parts = {part};
    try {
      outbox_->add({group_, part, group_->send(parts, peer_, tag_), timeout, expected});
    } catch (const std::exception& error) {
      throw BoundaryError(expected + first_line(error));
    }
  }
}

// ---- receiving ---------------------------------------------------------------------------------

Header StageLink::receive() {
  outbox_->check();
  // The body of what was refused may be next, and Gloo ends a process with less room for it.
  if (!refusal_.empty())
    throw BoundaryError("[" + std::string(owner_) + "] stopped before: " + refusal_);
  Header header = stage_header(receive_bytes(static_cast<std::int64_t>(kHeaderBytes)));
  if (header.kind == MessageKind::kStopped)
    throw BoundaryError("[" + std::string(owner_) + "] rank " + std::to_string(peer_) +
                        " stopped: " + header.text);
  return header;
}

at::Tensor StageLink::receive_body(const Header& header) {
  at::Tensor body = receive_bytes(static_cast<std::int64_t>(header.num_bytes));
  count_message(received_, header);
  return body;
}

at::Tensor StageLink::receive_bytes(std::int64_t size) {
  std::vector<at::Tensor> parts = {at::empty({size}, at::kByte)};
  if (size == 0) return parts[0];
  try {
    wait_for_work(group_->recv(parts, peer_, tag_), timeout_);
  } catch (const std::exception& error) {
    throw BoundaryError(expectation("send", timeout_) + first_line(error));
  }
  return parts[0];
}

std::string StageLink::expectation(const char* verb, Timeout timeout) const {
  std::ostringstream text;
  text << "[" << owner_ << "] expected rank " << peer_ << " to " << verb << " a tensor";
  if (timeout) text << " within " << static_cast<double>(timeout->count()) / 1e3 << " s";
  text << ", got: ";
  return text.str();
}

}  // namespace slimgrad::exchange
