#include "runtime/exchange/job.h"

#include <utility>

namespace slimgrad::exchange {

void Outcome::settle(std::exception_ptr error) {
  std::vector<std::function<void(std::exception_ptr)>> then;
  {
    const std::lock_guard lock(mutex_);
    if (is_settled_) return;
    is_settled_ = true;
    error_ = error;
    then.swap(then_);
  }
  settled_.notify_all();
  for (const auto& call : then) call(error);
}

void Outcome::complete() { settle(nullptr); }
void Outcome::fail(const std::string& text) {
  settle(std::make_exception_ptr(ExchangeError(text)));
}

bool Outcome::wait_until(std::chrono::steady_clock::time_point time) const {
  std::unique_lock lock(mutex_);
  if (!settled_.wait_until(lock, time, [&] { return is_settled_; })) return false;
  if (error_) std::rethrow_exception(error_);
  return true;
}

void Outcome::wait() const {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return is_settled_; });
  if (error_) std::rethrow_exception(error_);
}

bool Outcome::is_complete() const {
  const std::lock_guard lock(mutex_);
  return is_settled_;
}

void Outcome::when_settled(std::function<void(std::exception_ptr)> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_settled_) {
      then_.push_back(std::move(then));
      return;
    }
  }
  then(error_);
}

}  // namespace slimgrad::exchange
