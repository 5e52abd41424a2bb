// The networks that slimgrad-train knows, one file for each family. Input sizes follow the data.
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

// Five convolutions, 0.2 M weights, 10 M multiply-adds for an image of 32 x 32.
PartPtr make_cnn(const SampleShape& data, PartMaker maker);
// Softmax regression on the pixels: what glyphs must defeat.
PartPtr make_linear(const SampleShape& data, PartMaker maker);
// Two hidden layers of 512.
PartPtr make_mlp(const SampleShape& data, PartMaker maker);
// He et al. 2016 for small images: three stages of three blocks, 16 to 64 channels; shortcuts
// without weights.
PartPtr make_resnet20(const SampleShape& data, PartMaker maker);
// He et al. 2016: four stages of two blocks, 64 to 512 channels, with a stem of 3 x 3 for small
// images.
PartPtr make_resnet18(const SampleShape& data, PartMaker maker);
// Simonyan and Zisserman 2015, configuration A, with one linear layer for small images.
PartPtr make_vgg11(const SampleShape& data, PartMaker maker);
// Huang et al. 2017: DenseNet-BC of depth 40 that grows by 12 channels a layer.
PartPtr make_densenet(const SampleShape& data, PartMaker maker);
// Three blocks, width 128, four heads, on kTextContext bytes; 0.7 M weights.
PartPtr make_gpt(const SampleShape& data, PartMaker maker);

// Layers with their names, in the order in which they were made.
std::vector<Layer*> layers_of(Part& network);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_NETWORKS_H_
