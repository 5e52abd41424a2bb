// Why a rank stopped, and how all ranks of its group get to know the first cause.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_FAULTS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_FAULTS_H_

#include <chrono>
#include <string>

#include "runtime/exchange/streams.h"

namespace slimgrad::exchange {

// Another rank that is gone may have had a reason, which others know.
struct Fault {
  std::string text;
  bool is_loss = false;    // of another rank
  bool is_report = false;  // of another rank's fault
  // Found while sums of others were gathered: the rank that does not answer may itself wait for a
  // third one, which is found while the own sum is made.
  bool is_indirect = false;
};

// Which cause was the first of the group, as its store has it; `told`, which is this rank's, if the
// store does not answer, as where the process that holds it is gone.
std::string settled_cause(const Group& group, const std::string& told);

// Says why to every peer, in each of its streams: who waits does so in one of them. Ends when each
// peer has heard it in one, or is gone, but no later than after `time`.
void tell_all(const Group& group, const std::string& text, std::chrono::milliseconds time);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_FAULTS_H_
