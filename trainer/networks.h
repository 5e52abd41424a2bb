// The networks that slimgrad-train knows. Input sizes follow the data.
#ifndef SLIMGRAD_TRAINER_NETWORKS_H_
#define SLIMGRAD_TRAINER_NETWORKS_H_

#include <string_view>
#include <vector>

#include "trainer/data_set.h"
#include "trainer/parts.h"

namespace slimgrad::trainer {

// Makes the network that --model names. Throws InvalidArgument for data that it cannot read.
PartPtr make_network(std::string_view model, const SampleShape& data,
                     const NetworkOptions& options);

// Layers with their names, in the order in which they were made.
std::vector<Layer*> layers_of(Part& network);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_NETWORKS_H_
