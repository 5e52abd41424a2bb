// The gates of a network: a GateGroup with the reports that the trainer adds up.
#ifndef SLIMGRAD_TRAINER_NETWORK_GATES_H_
#define SLIMGRAD_TRAINER_NETWORK_GATES_H_

#include <vector>

#include <slimgrad/gate_group.h>

#include "trainer/gradient_choice.h"
#include "trainer/gradient_totals.h"
#include "trainer/networks.h"

namespace slimgrad::trainer {

class NetworkGates : public GateGroup {
 public:
  // Throws InvalidArgument for a target that names no layer.
  NetworkGates(Part& network, const GradientChoice& choice);

  // What each gate did in the last backward pass; of sparse layers all weights before all inputs.
  std::vector<LayerReport> reports() const;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_NETWORK_GATES_H_
