#include "runtime/compress/summary.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string_view>

namespace slimgrad::gating {
namespace {

constexpr const char* kModel = "(model)";  // the name of a layer that is the model itself

std::string shown(const std::string& name) { return name.empty() ? kModel : name; }

}  // namespace

std::string summary_text(const std::vector<NamedReport>& reports,
                         const std::map<std::string, std::string>& left,
                         const std::vector<std::string>& warnings) {
  std::size_t width = std::string_view(kModel).size();
  for (const NamedReport& row : reports) width = std::max(width, row.name.size());
  std::ostringstream text;
  text << std::left << std::setw(static_cast<int>(width)) << "layer" << std::right
       << "    calls  zeros (wanted)  cosine  rel.err  format    values\n";
  for (const auto& [name, counts, gate, product] : reports) {
    text << std::left << std::setw(static_cast<int>(width)) << shown(name) << std::right
         << std::setw(9) << gate.calls << std::fixed << std::setprecision(3);
    if (gate.calls > 0 && !gate.compressed)
      text << "  left alone, small or in warm-up";
    else if (gate.calls > 0)
      text << std::setw(7) << gate.sparsity << "  (" << gate.sparsity_wanted << ')'
           << std::setprecision(4) << std::setw(8) << gate.cosine << std::setw(9)
           << gate.relative_error << std::setw(8)
           << (gate.quantizer ? gate.quantizer->format.name() : "-") << std::setw(10)
           << gate.elements;
    text << '\n';
  }
  for (const auto& [name, why] : left) text << shown(name) << ": no gate: " << why << '\n';
  for (const std::string& warning : warnings) text << "warning: " << warning << '\n';
  text << "few-bit activations and sparse backward passes: modules of slimgrad::nn, in the place "
          "of torch's\n";
  return text.str();
}

}  // namespace slimgrad::gating
