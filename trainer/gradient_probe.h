// Detailed measurement of one gradient: its magnitudes, the distributions fitted to them, and its
// size after entropy coding. For arrays; no torch.
#ifndef SLIMGRAD_TRAINER_GRADIENT_PROBE_H_
#define SLIMGRAD_TRAINER_GRADIENT_PROBE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <slimgrad/distribution.h>
#include <slimgrad/payload_info.h>
#include <slimgrad/tensor_stats.h>

namespace slimgrad::trainer {

struct FamilyFit {
  Distribution law;
  double ks_distance;
};

// Every family that slimgrad fits; those that cannot be are left out. Of a large gradient a sample
// of kFitSample values, at positions that a hash chooses, is fitted.
inline constexpr std::size_t kFitSample = std::size_t{1} << 17;
std::vector<FamilyFit> fit_families(std::span<const float> gradient);

struct CodeSize {
  std::string coder;  // "rans", "huffman"
  TableModel model;
  double bits;  // of the whole payload, header included, over values
};

// The gradient in levels of `quantizer_bits` bits up to its maximum, as encode() cuts it with
// kUniform: the entropy of the levels, in bits a value, and what each coder needs under each model.
// Empty where there is nothing to code: no value, or one that is not finite.
struct CodeSizes {
  int quantizer_bits = 0;
  double entropy = 0;
  std::vector<CodeSize> codes;
};
inline constexpr std::array kQuantizerBits = {8, 6, 4, 2};  // that are measured
CodeSizes code_sizes(std::span<const float> gradient, int quantizer_bits);

// What was found of one layer at a step.
struct GradientLook {
  std::string layer, tensor;  // tensor: "neural_gradient" or "weight_gradient"
  TensorStats stats;
  std::vector<FamilyFit> fits;
  std::vector<CodeSizes> sizes;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRADIENT_PROBE_H_
