// How long something took. No result depends on it.
#ifndef SLIMGRAD_BASE_STOPWATCH_H_
#define SLIMGRAD_BASE_STOPWATCH_H_

#include <chrono>

namespace slimgrad {

class Stopwatch {
 public:
  // Seconds since the last lap or the start.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_STOPWATCH_H_
