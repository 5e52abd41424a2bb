#include "runtime/exchange/faults.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace slimgrad::exchange {

namespace {

using std::chrono::milliseconds;

// How long the group's store may take to say which cause was the first.
constexpr milliseconds kStoreTime{1500};
constexpr char kCauseKey[] = "slimgrad/first_cause";

}  // namespace

std::string settled_cause(const Group& group, const std::string& told) {
  struct Answer {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<std::string> first;
  };
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, group, told] {
    std::string first = told;
    try {
      const std::vector<std::uint8_t> value = group->getStore()->compareSet(
          kCauseKey, {}, std::vector<std::uint8_t>(told.begin(), told.end()));
      if (!value.empty()) first.assign(value.begin(), value.end());
    } catch (const std::exception&) {
    }
    const std::lock_guard lock(answer->mutex);
    answer->first = first;
    answer->there.notify_all();
  }).detach();
  std::unique_lock lock(answer->mutex);
  answer->there.wait_for(lock, kStoreTime, [&] { return answer->first.has_value(); });
  return answer->first.value_or(told);
}

void tell_all(const Group& group, const std::string& text, milliseconds time) {
  struct Heard {
    std::mutex mutex;
    std::condition_variable by_more;
    std::set<int> by;
    void add(int peer) {
      const std::lock_guard lock(mutex);
      by.insert(peer);
      by_more.notify_all();
    }
  };
  const auto heard = std::make_shared<Heard>();
  const at::Tensor message = header_alone({.kind = MessageKind::kStopped, .text = text});
  const int size = group->getSize(), rank = group->getRank();
  std::vector<Work> works;
  for (int stage = 0; stage < kStages; ++stage)
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      try {
        works.push_back(send_to(group, message, peer, stage));
      } catch (const std::exception&) {  // gone
        heard->add(peer);
        continue;
      }
      std::thread([heard, message, peer, work = works.back()] {
        bool was_heard = true;
        try {
          was_heard = work->wait();
        } catch (const std::exception&) {  // gone
        }
        if (was_heard) heard->add(peer);
      }).detach();
    }
  {
    std::unique_lock lock(heard->mutex);
    heard->by_more.wait_for(lock, time,
                            [&] { return heard->by.size() + 1 == static_cast<std::size_t>(size); });
  }
  for (const Work& work : works) work->abort();
}

}  // namespace slimgrad::exchange
