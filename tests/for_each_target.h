#ifndef SLIMGRAD_TESTS_FOR_EACH_TARGET_H_
#define SLIMGRAD_TESTS_FOR_EACH_TARGET_H_

#include <cstdint>

#include <hwy/highway.h>

namespace slimgrad {

// Calls f once for every target of the kernels that this machine can run.
template <class F>
void for_each_target(F f) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    f(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_FOR_EACH_TARGET_H_
