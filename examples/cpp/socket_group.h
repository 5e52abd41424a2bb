// A process group over TCP, for programs on torch's wheel: it has no headers of Gloo, but those of
// c10d, and a backend that sends and receives is all that slimgrad's exchange needs. Programs with
// a torch of their own build take c10d::ProcessGroupGloo instead, which is faster.
//
// Each pair of ranks has one connection; a thread for each peer reads what comes and keeps it until
// it is asked for. So sending never waits for a receiver that computes.
#ifndef EXAMPLES_CPP_SOCKET_GROUP_H_
#define EXAMPLES_CPP_SOCKET_GROUP_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What has arrived, by sender and tag, until it is asked for.
class Inbox {
 public:
  void add(int from, int tag, std::vector<char> message) {
    const std::lock_guard lock(mutex_);
    messages_[{from, tag}].push_back(std::move(message));
    changed_.notify_all();
  }
  void close(int from) {
    const std::lock_guard lock(mutex_);
    gone_.insert(from);
    changed_.notify_all();
  }
  void abort(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  // The number of the next message that is asked for.
  std::size_t ask(int from, int tag) {
    const std::lock_guard lock(mutex_);
    return asked_[{from, tag}]++;
  }
  // Waits for the message with this number, which may be shorter than `out`. False if aborted.
  bool take(int from, int tag, std::size_t number, const at::Tensor& out, const bool& is_aborted) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<char>>& stream = messages_[{from, tag}];
    std::size_t& first = taken_[{from, tag}];  // messages before it are no longer here
    changed_.wait(lock, [&] {
      return is_aborted || (number == first && !stream.empty()) || gone_.contains(from);
    });
    if (is_aborted) return false;
    if (number != first || stream.empty()) throw std::runtime_error("connection closed by peer");
    const std::vector<char>& message = stream.front();
    if (message.size() > out.nbytes()) throw std::runtime_error("a message is too long");
    std::memcpy(out.mutable_data_ptr(), message.data(), message.size());
    stream.pop_front();
    ++first;
    changed_.notify_all();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> messages_;
  std::map<std::pair<int, int>, std::size_t> asked_, taken_;
  std::set<int> gone_;
};

class SocketBackend : public c10d::Backend {
 public:
  // Meets the other ranks through the store, all on this machine.
  SocketBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)
      : Backend(rank, size), inbox_(std::make_shared<Inbox>()) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    check(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
    check(listen(listener, size) == 0);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    store->set("port" + std::to_string(rank), std::to_string(ntohs(address.sin_port)));
    for (int peer = 0; peer < rank; ++peer) {
      address.sin_port = htons(std::stoi(store->get_to_str("port" + std::to_string(peer))));
      const int connection = socket(AF_INET, SOCK_STREAM, 0);
      check(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
      write_all(connection, &rank, sizeof rank);
      add_peer(peer, connection);
    }
    for (int left = size - rank - 1; left > 0; --left) {
      const int connection = accept(listener, nullptr, nullptr);
      int peer = 0;
      check(read_all(connection, &peer, sizeof peer));
      add_peer(peer, connection);
    }
    ::close(listener);
  }
  ~SocketBackend() override {
    for (auto& [rank, peer] : peers_) ::shutdown(peer.connection, SHUT_RDWR);
    for (auto& [rank, peer] : peers_) {
      peer.reader.join();
      ::close(peer.connection);
    }
  }

  // The exchange takes Gloo and backends that keep its rule, which they say by its name: a message
  // may be shorter than what was asked for.
  const std::string getBackendName() const override { return "gloo"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const std::int64_t head[2] = {tag, static_cast<std::int64_t>(tensors[0].nbytes())};
    Peer& peer = peers_.at(to);
    const std::lock_guard lock(peer.writing);
    write_all(peer.connection, head, sizeof head);
    write_all(peer.connection, tensors[0].const_data_ptr(), tensors[0].nbytes());
    return c10::make_intrusive<Sent>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return c10::make_intrusive<Received>(inbox_, from, tag, tensors[0]);
  }

 private:
  struct Peer {
    int connection = -1;
    std::mutex writing;
    std::thread reader;
  };
  struct Sent : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
    void abort() override {}
  };
  struct Received : c10d::Work {
    Received(std::shared_ptr<Inbox> of, int sender, int number_of_stream, at::Tensor tensor)
        : inbox(std::move(of)),
          from(sender),
          tag(number_of_stream),
          out(std::move(tensor)),
          number(inbox->ask(from, tag)) {}
    bool wait(std::chrono::milliseconds) override {
      return inbox->take(from, tag, number, out, is_aborted);
    }
    void abort() override { inbox->abort(is_aborted); }

    std::shared_ptr<Inbox> inbox;
    int from, tag;
    at::Tensor out;
    std::size_t number;
    bool is_aborted = false;
  };

  static void check(bool holds) {
    if (!holds) throw std::runtime_error(std::strerror(errno));
  }
  static void write_all(int connection, const void* bytes, std::size_t size) {
    const char* next = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t written = ::send(connection, next, size, MSG_NOSIGNAL);
      check(written > 0);
      next += written;
      size -= static_cast<std::size_t>(written);
    }
  }
  static bool read_all(int connection, void* bytes, std::size_t size) {
    return size == 0 || ::recv(connection, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  void add_peer(int rank, int connection) {
    const int yes = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Peer& peer = peers_[rank];
    peer.connection = connection;
    peer.reader = std::thread([inbox = inbox_, rank, connection] {
      for (std::int64_t head[2]; read_all(connection, head, sizeof head);) {
        std::vector<char> message(static_cast<std::size_t>(head[1]));
        if (!read_all(connection, message.data(), message.size())) break;
        inbox->add(rank, static_cast<int>(head[0]), std::move(message));
      }
      inbox->close(rank);
    });
  }

  std::shared_ptr<Inbox> inbox_;
  std::map<int, Peer> peers_;
};

// Rank 0 holds the store, at this port.
inline c10::intrusive_ptr<c10d::ProcessGroup> socket_group(int rank, int size, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(size);
  const auto store = c10::make_intrusive<c10d::TCPStore>("localhost", options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  using BackendType = c10d::ProcessGroup::BackendType;
  group->setBackend(c10::DeviceType::CPU, BackendType::CUSTOM,
                    c10::make_intrusive<SocketBackend>(store, rank, size));
  group->setDefaultBackend(BackendType::CUSTOM);
  group->setGroupName("all");
  return group;
}

#endif  // EXAMPLES_CPP_SOCKET_GROUP_H_
