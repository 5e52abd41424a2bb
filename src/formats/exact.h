// How a tensor that backward keeps is stored exactly, without its zeros; values in tasks of
// kTaskValues, of two or four bytes:
//
//     |where the survivors of each task begin, uint64, and where all end|masks|survivors|
//
// Bit k of mask byte m says that value 8 m + k is not 0 (all bits of it; -0.0 stays). The survivors
// of a task begin at a multiple of 16 bytes, and 16 unused bytes follow them. Where all survivors
// are the same, as in the mask of a dropout, the masks and one value are enough:
//
//     |2^64 - 1|the value, uint64|masks|
#ifndef SLIMGRAD_FORMATS_EXACT_H_
#define SLIMGRAD_FORMATS_EXACT_H_

#include <cstddef>
#include <cstdint>

namespace slimgrad::exact {

inline constexpr std::size_t kTaskValues = std::size_t{1} << 15;
inline constexpr std::size_t kMaskBytes = kTaskValues / 8;  // of a task
inline constexpr std::size_t kUnusedBytes = 16;             // behind the survivors of a task

inline constexpr std::uint64_t kOneSurvivor = ~std::uint64_t{0};  // where others have a begin
inline constexpr std::size_t kOneSurvivorHead = 16;               // bytes before its masks

constexpr std::size_t num_tasks(std::size_t num_values) {
  return (num_values + kTaskValues - 1) / kTaskValues;
}
constexpr std::size_t count_of(std::size_t task, std::size_t num_values) {
  const std::size_t left = num_values - task * kTaskValues;
  return left < kTaskValues ? left : kTaskValues;
}
constexpr std::size_t up_to_16(std::size_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

// Bytes of the table of begins: where the masks are.
constexpr std::size_t head_bytes(std::size_t num_values) {
  return (num_tasks(num_values) + 1) * sizeof(std::uint64_t);
}
// Where the survivors of the first task begin.
constexpr std::size_t first_begin(std::size_t num_values) {
  return up_to_16(head_bytes(num_values) + (num_values + 7) / 8);
}
// From the begin of a task to that of the next.
constexpr std::size_t survivor_bytes(std::size_t num_survivors, std::size_t width) {
  return up_to_16(num_survivors * width + kUnusedBytes);
}
// All bytes where one value is enough.
constexpr std::size_t mask_bytes(std::size_t num_values) {
  return kOneSurvivorHead + (num_values + 7) / 8;
}

}  // namespace slimgrad::exact

#endif  // SLIMGRAD_FORMATS_EXACT_H_
