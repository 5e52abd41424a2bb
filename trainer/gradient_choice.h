// What --gradients says, as the options beside it refine it, and what it saves.
#ifndef SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_
#define SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/gate.h>
#include <slimgrad/threshold.h>

namespace slimgrad::trainer {

// Sparsities of the two products of a sparse backward pass.
struct SparseChoice {
  double weight = 0, input = 0;
};

// How a sparsity is spread over layers. kUniform: every layer has it, and nothing is spread.
struct AllocationChoice {
  AllocationObjective objective = AllocationObjective::kUniform;
  double cap = kDefaultSparsityCap;
  std::vector<std::pair<std::string, double>> targets = {};  // cosines, by the name of a layer
};

// At most one of `gates` and `sparse`; the rest is for either.
struct GradientChoice {
  std::optional<GradientSettings> gates = {};
  std::optional<SparseChoice> sparse = {};

  ThresholdMethod sparse_method = ThresholdMethod::kEmpirical;
  bool always_sparse = false;      // even where dense is faster
  std::int64_t refresh_every = 1;  // steps from choice to choice; 0: once per epoch
  std::int64_t warmup = 0;         // first steps, which are only measured
  std::int64_t min_elements = GateOptions().min_elements;
  AllocationChoice allocation = {};
  std::int64_t growth_interval = 0;  // of a dynamic loss scale; 0: none
};

// "fp6", "1-3-2", "prune:0.85", "prune:0.85+fp6", "prune:0.85+1-3-2" or "sparse:0.9:0.5" (weight,
// input); nothing for "none". Throws InvalidArgument on anything else.
GradientChoice parse_gradient_choice(std::string_view text);

// The settings of a gate as they are typed, by their names (gate_settings() in
// arrays/decide/gate_fields.h): those given, and the default of the others.
using GateTexts = std::map<std::string, std::string>;
GateTexts gate_texts(GateTexts given = {});

// The options beside --gradients; they hold for every run.
struct GradientOptions {
  GateTexts gate = gate_texts();
  std::vector<std::string> targets = {};  // LAYER=COSINE
  double cap = kDefaultSparsityCap;
  std::string sparse_way = "auto";  // or "always"
};

// Throws InvalidArgument for what is unknown or does not go together. A run that needs none of an
// option, such as "none", is left alone by it.
void refine(GradientChoice& choice, const GradientOptions& options);

// Throws InvalidArgument for an option that none of the runs, which are refined, has a use for.
void check_effects(std::span<const GradientChoice> runs, const GradientOptions& options);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_CHOICE_H_
