// The memory of the test device: a host access is a fault unless a kernel or a copy runs.
#ifndef SLIMGRAD_TESTS_TESTDEVICE_MEMORY_H_
#define SLIMGRAD_TESTS_TESTDEVICE_MEMORY_H_

#include <cstddef>

namespace testdevice {

void* allocate(std::size_t num_bytes);
void release(void* memory);

// While one of these lives, in any thread, the memory may be read and written.
struct Opened {
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

}  // namespace testdevice

#endif  // SLIMGRAD_TESTS_TESTDEVICE_MEMORY_H_
