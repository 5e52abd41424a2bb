#include "trainer/gradient_totals.h"

#include <algorithm>
#include <cmath>

namespace slimgrad::trainer {
namespace {

constexpr double kFloatBits = 32;

}  // namespace

void GradientTotals::add(const std::vector<LayerReport>& reports, bool stored) {
  layers_.resize(reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    LayerTotals& layer = layers_[i];
    const auto& [name, report] = reports[i];
    layer.name = name;
    layer.seen_before = name.ends_with(kInputProduct);
    if (report.calls == 0) continue;  // images need no gradient: the first layer's input product
    const auto values = static_cast<double>(report.elements);
    ++layer.passes;
    layer.values += report.elements;
    layer.nonfinite += report.nonfinite;
    layer.saturated_passes += report.saturated;
    layer.log_std += report.log_std;
    layer.bits += values * (stored ? slimgrad::bits_per_value(report) : kFloatBits);
    layer.last_format = report.quantizer ? report.quantizer->format.name() : "";
    layer.last_scale = report.quantizer ? report.quantizer->scale : 0;
    layer.last_threshold = report.threshold;
    if (!report.compressed) continue;
    ++layer.compressed_passes;
    layer.compressed += report.elements;
    layer.zeros += values * report.sparsity;
    layer.wanted += values * report.sparsity_wanted;
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
  for (const LayerTotals& layer : layers_)
    if (!layer.seen_before) values += layer.values;
  return values;
}

double GradientTotals::worst_miss() const {
  double worst = 0;
  for (const LayerTotals& layer : layers_) worst = std::max(worst, layer.worst_miss);
  return worst;
}

}  // namespace slimgrad::trainer
