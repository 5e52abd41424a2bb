// The networks that slimgrad-train knows.
#ifndef SLIMGRAD_TRAINER_MODEL_H_
#define SLIMGRAD_TRAINER_MODEL_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include <slimgrad/gradient_gate.h>

#include "trainer/gradient_choice.h"
#include "trainer/gradient_totals.h"

namespace slimgrad::trainer {

enum class Architecture {
  kConvolutional,  // five convolutions, 0.2 M weights, 10 M multiply-adds an image
  kLinear,         // softmax regression on the pixels: what the images must defeat
};

// A network for glyphs. With gates, one stands behind every convolution and linear layer, before
// the normalisation: the layer's backward then works on the compressed gradient. With a sparse
// backward pass the layers are slimgrad's own. Weights come from torch's generator; `seed` is for
// the random draws of backward.
torch::nn::Sequential make_network(Architecture architecture, const GradientChoice& gradients,
                                   std::uint64_t seed);

// What each gate of a network did in the last backward pass.
std::vector<LayerReport> gate_reports(const torch::nn::Sequential& network);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_MODEL_H_
