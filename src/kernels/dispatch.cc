#include "kernels/dispatch.h"

#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"

namespace slimgrad::kernels {
namespace {

std::atomic<bool> scalar_selected{false};
std::atomic<std::int64_t> usable_targets{0};  // zero: not asked yet

std::string lower_name(std::int64_t target) {
  // Highway's code on vectors of one lane; "scalar" is our own plain C++.
  if (target == HWY_SCALAR) return "onelane";
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// Zero stands for everything that the CPU has.
void restrict_highway(std::int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  usable_targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(usable_targets);
}

// What the CPU has, whatever was selected before.
std::vector<std::int64_t> highway_targets() {
  static const std::vector<std::int64_t> targets = [] {
    hwy::SetSupportedTargetsForTest(0);
    return hwy::SupportedAndGeneratedTargets();
  }();
  return targets;
}

// "scalar", then those whose bits are set: Highway gives lower bits to wider vectors.
std::vector<std::string> names_of(std::int64_t targets) {
  std::vector<std::string> names = {"scalar"};
  for (auto left = static_cast<std::uint64_t>(targets); left != 0; left &= left - 1)
    names.push_back(lower_name(static_cast<std::int64_t>(left & -left)));
  return names;
}

}  // namespace

std::vector<std::string> kernel_sets() {
  std::vector<std::string> names = {"scalar"};
  for (const std::int64_t target : highway_targets()) names.push_back(lower_name(target));
  return names;
}

std::vector<std::string> compiled_kernel_sets() { return names_of(HWY_TARGETS); }

std::string selected_kernel_set() {
  obey_environment();
  return use_scalar() ? "scalar" : names_of(hwy::SupportedTargets() & HWY_TARGETS).at(1);
}

void select_kernel_set(std::string_view name) {
  if (name == "scalar" || name == "best") {
    restrict_highway(0);
    scalar_selected = name == "scalar";
    return;
  }
  for (const std::int64_t target : highway_targets()) {
    if (lower_name(target) == name) {
      restrict_highway(target);
      scalar_selected = false;
      return;
    }
  }
  std::string expected = "SLIMGRAD_KERNELS to be best";
  for (const std::string& set : kernel_sets()) expected += " or " + set;
  throw_invalid("kernels", expected, '\'', name, '\'');
}

void obey_environment() {
  // A static that throws is tried again by the next call, so no caller misses a wrong name.
  [[maybe_unused]] static const bool obeyed = [] {
    if (const char* name = std::getenv("SLIMGRAD_KERNELS")) select_kernel_set(name);
    return true;
  }();
}

bool use_scalar() noexcept { return scalar_selected.load(std::memory_order_relaxed); }

bool use_avx2() noexcept {
  constexpr std::int64_t kHaveIt = HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;
  std::int64_t usable = usable_targets.load(std::memory_order_relaxed);
  if (usable == 0) {
    // Asks the CPU, which leaves a virtual machine several times: some 20 microseconds.
    usable = hwy::SupportedTargets();
    usable_targets.store(usable, std::memory_order_relaxed);
  }
  return !use_scalar() && (usable & kHaveIt) != 0;
}

}  // namespace slimgrad::kernels
