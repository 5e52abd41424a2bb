#include "trainer/gradient_totals.h"

#include <algorithm>
#include <cmath>

#include "trainer/gradient_choice.h"

namespace slimgrad::trainer {
namespace {

constexpr double kFloatBits = 32;

// Without pruning every value takes a code of the format.
double bits_of(const GateReport& report) {
  if (!report.compressed) return kFloatBits;
  const double value_bits = report.quantizer ? report.quantizer->format.bits() : kFloatBits;
  if (report.threshold <= 0) return value_bits;
  return ideal_bits_per_value(report.sparsity, report.at_threshold, value_bits);
}

}  // namespace

void GradientTotals::add(const std::vector<LayerReport>& reports, bool stored) {
  layers_.resize(reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    LayerTotals& layer = layers_[i];
    const auto& [name, report] = reports[i];
    layer.name = name;
    if (report.calls == 0) continue;  // images need no gradient: the first layer's input product
    const auto values = static_cast<double>(report.elements);
    ++layer.passes;
    layer.values += report.elements;
    layer.nonfinite += report.nonfinite;
    layer.saturated_passes += report.saturated;
    layer.log_std += report.log_std;
    layer.bits += values * (stored ? bits_of(report) : kFloatBits);
    layer.last_format = report.quantizer ? report.quantizer->format.name() : "";
    layer.last_scale = report.quantizer ? report.quantizer->scale : 0;
    layer.last_threshold = report.threshold;
    layer.last_wanted = report.sparsity_wanted;
    if (!report.compressed) continue;
    ++layer.compressed_passes;
    layer.compressed += report.elements;
    layer.zeros += values * report.sparsity;
    layer.cosine += values * report.cosine;
    layer.relative_error += values * report.relative_error;
    layer.bias += values * report.bias;
    if (report.sparsity_wanted > 0)
      layer.worst_miss =
          std::max(layer.worst_miss, std::abs(report.sparsity - report.sparsity_wanted));
  }
}

double GradientTotals::sparsity() const {
  double zeros = 0, values = 0;
  for (const LayerTotals& layer : layers_) {
    zeros += layer.zeros;
    values += static_cast<double>(layer.compressed);
  }
  return values > 0 ? zeros / values : 0;
}

double GradientTotals::bits_per_value() const {
  double bits = 0, values = 0;
  for (const LayerTotals& layer : layers_) {
    bits += layer.bits;
    values += static_cast<double>(layer.values);
  }
  return values > 0 ? bits / values : kFloatBits;
}

std::int64_t GradientTotals::num_values() const {
  std::int64_t values = 0;
  for (const LayerTotals& layer : layers_) values += layer.values;
  return values;
}

double GradientTotals::worst_miss() const {
  double worst = 0;
  for (const LayerTotals& layer : layers_) worst = std::max(worst, layer.worst_miss);
  return worst;
}

}  // namespace slimgrad::trainer
