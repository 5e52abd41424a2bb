// Where a run was trained, for its record.
#ifndef SLIMGRAD_TRAINER_MACHINE_H_
#define SLIMGRAD_TRAINER_MACHINE_H_

#include <cstdint>
#include <string>

namespace slimgrad::trainer {

// The processor's name, as the kernel has it, and the number of those that the process may use.
std::string machine();

// The most memory that was resident in this process, in bytes.
std::uint64_t peak_memory();

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_MACHINE_H_
