// What the test device counts, and its strict mode.
#ifndef SLIMGRAD_TESTS_TESTDEVICE_COUNTS_H_
#define SLIMGRAD_TESTS_TESTDEVICE_COUNTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace testdevice {

struct Counts {
  std::atomic<std::int64_t> kernels{0};         // launched, fills of memory included
  std::atomic<std::int64_t> copies_to_host{0};  // item() too
  std::atomic<std::int64_t> waits{0};           // of the host for the device
  std::atomic<std::int64_t> fallbacks{0};       // operations that the CPU did instead
};
extern Counts counts;

// Of all fallbacks, by the names of operators.
void count_fallback(const std::string& name);
std::map<std::string, std::int64_t> fallback_names();
void reset_counts();

// Where it is set, a wait or a copy to the host is an error, unless a fallback needs it.
extern std::atomic<bool> is_strict;

}  // namespace testdevice

#endif  // SLIMGRAD_TESTS_TESTDEVICE_COUNTS_H_
