#include "trainer/machine.h"

#include <sys/resource.h>

#include <fstream>
#include <thread>

namespace slimgrad::trainer {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";  // Arm's kernels name none
}

}  // namespace

std::string machine() {
  return processor_name() + ", " + std::to_string(std::thread::hardware_concurrency()) + " threads";
}

std::uint64_t peak_memory() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace slimgrad::trainer
