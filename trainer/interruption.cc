#include "trainer/interruption.h"

#include <csignal>

namespace slimgrad::trainer {
namespace {

volatile std::sig_atomic_t was_interrupted = 0;

}  // namespace

void watch_for_interruption() {
  struct sigaction action = {};
  action.sa_handler = [](int) { was_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the next one is not caught
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return was_interrupted != 0; }

}  // namespace slimgrad::trainer
