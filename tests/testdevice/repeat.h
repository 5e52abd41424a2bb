// Every call of an op of slimgrad on CPU tensors, done once more on the test device, and compared:
// so a suite that is written for the CPU tests the device.
#ifndef SLIMGRAD_TESTS_TESTDEVICE_REPEAT_H_
#define SLIMGRAD_TESTS_TESTDEVICE_REPEAT_H_

#include <cstdint>
#include <map>
#include <string>

namespace testdevice {

// In all threads. What the op returns or writes must be the same bits with the same strides, an
// error the same text; and the device must not be waited for, but by ops whose results have sizes
// that depend on values. (It replaces the CPU's kernels in torch's dispatcher, which says so.)
void repeat_ops(bool on);

// How many calls were compared, by the names of ops.
std::map<std::string, std::int64_t> repeated_calls();

}  // namespace testdevice

#endif  // SLIMGRAD_TESTS_TESTDEVICE_REPEAT_H_
