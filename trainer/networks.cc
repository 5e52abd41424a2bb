#include "trainer/networks.h"

#include <slimgrad/error.h>

namespace slimgrad::trainer {
namespace {

using Maker = PartPtr (*)(const SampleShape&, PartMaker);

Maker maker_of(std::string_view model) {
  if (model == "cnn") return make_cnn;
  if (model == "linear") return make_linear;
  if (model == "mlp") return make_mlp;
  if (model == "resnet20") return make_resnet20;
  if (model == "resnet18") return make_resnet18;
  if (model == "vgg11") return make_vgg11;
  if (model == "densenet") return make_densenet;
  if (model == "gpt") return make_gpt;
  throw InvalidArgument("--model: expected one of the networks that --help lists, got " +
                        std::string(model));
}

}  // namespace

std::vector<Layer*> layers_of(Part& network) {
  std::vector<Layer*> layers;
  for (const auto& module : network.modules(/*include_self=*/false))
    if (auto* layer = dynamic_cast<Layer*>(module.get())) layers.push_back(layer);
  return layers;
}

PartPtr make_network(std::string_view model, const SampleShape& data,
                     const NetworkOptions& options) {
  if ((model == "gpt") != data.is_text)
    throw InvalidArgument("--data: expected " + std::string(data.is_text ? "images" : "text") +
                          " for --model " + std::string(model));
  PartPtr network = maker_of(model)(data, PartMaker(options));
  const auto watch = std::make_shared<GradientWatch>();
  for (const auto& module : network->named_modules("", /*include_self=*/false))
    if (auto* layer = dynamic_cast<Layer*>(module.value().get())) {
      layer->name = module.key();
      layer->watch = watch;
    }
  const std::vector<Layer*> layers = layers_of(*network);
  for (std::size_t i = 1; i + 1 < layers.size(); ++i) layers[i]->fake_int4 = options.fake_int4;
  return network;
}

}  // namespace slimgrad::trainer
