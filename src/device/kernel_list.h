// All kernels, once: the entry points of the GPU's binary (kernels.cu) and the kernels that run on
// the host (host_kernels.cc) are made from this list.
//
// A kernel is a struct with
//   kThreads                     threads of a block, in one dimension
//   Arguments                    what it is given: plain data, by value
//   Shared                       memory of a block; static, so that a launch asks for none
//   num_blocks(arguments)        blocks of the grid, in one dimension; 0: there is nothing to do
//   traffic(arguments)           bytes that it moves: block.h; of the host alone
//   run(block, arguments, shared)
// and kKernelName<Kernel> is its entry point, slimgrad_<operation>_<type>, with f32, bf16 and f16
// for types of values, b32 and b16 for bits of values that only are moved. To launch one, its only
// parameter is a pointer to the Arguments:
//
//   using Kernel = Apply<float, ::slimgrad::device::Treats::kPrune>;
//   Kernel::Arguments a = {...};
//   void* parameters[] = {&a};
//   cuLaunchKernel(kernel named kKernelName<Kernel>, Kernel::num_blocks(a), 1, 1,
//                  Kernel::kThreads, 1, 1, 0, stream, parameters, nullptr);
//
// Pointers are to the device's memory and need the alignment of their type alone. What a kernel
// adds to (counts, sums, histograms) is cleared by the caller; its comments say so.
#ifndef SLIMGRAD_DEVICE_KERNEL_LIST_H_
#define SLIMGRAD_DEVICE_KERNEL_LIST_H_

#include <cstdint>
#include <span>

#include <slimgrad/half.h>

#include "device/apply.h"
#include "device/coding.h"
#include "device/exact.h"
#include "device/fewbit.h"
#include "device/gate.h"
#include "device/gate_decide.h"
#include "device/measure.h"
#include "device/saved.h"

// X(entry point, kernel) for all, in namespace slimgrad::device. Kernels have commas in them: X is
// variadic.
// clang-format off
#define SLIMGRAD_DEVICE_KERNELS(X)                     \
  SLIMGRAD_DEVICE_KERNELS_OF(X, f32, float)            \
  SLIMGRAD_DEVICE_KERNELS_OF(X, bf16, BFloat16Bits)    \
  SLIMGRAD_DEVICE_KERNELS_OF(X, f16, Float16Bits)      \
  SLIMGRAD_DEVICE_KERNELS_OF_WORDS(X, b16, std::uint16_t) \
  SLIMGRAD_DEVICE_KERNELS_OF_WORDS(X, b32, std::uint32_t) \
  X(slimgrad_finish_measure, FinishMeasure)            \
  X(slimgrad_gate_decide, GateDecide)                  \
  X(slimgrad_uniform_add_f32, UniformAdd)

// Those of one type of values.
#define SLIMGRAD_DEVICE_KERNELS_OF(X, suffix, T)                          \
  X(slimgrad_quantize_##suffix, Apply<T, Treats::kQuantize>)              \
  X(slimgrad_prune_##suffix, Apply<T, Treats::kPrune>)                    \
  X(slimgrad_prune_quantize_##suffix, Apply<T, Treats::kPruneQuantize>)   \
  X(slimgrad_drop_##suffix, Apply<T, Treats::kDrop>)                      \
  X(slimgrad_step_codes1_##suffix, StepCodes<T, 1>)                       \
  X(slimgrad_step_codes2_##suffix, StepCodes<T, 2>)                       \
  X(slimgrad_step_codes3_##suffix, StepCodes<T, 3>)                       \
  X(slimgrad_step_codes4_##suffix, StepCodes<T, 4>)                       \
  X(slimgrad_step_backward1_##suffix, StepBackward<T, 1>)                 \
  X(slimgrad_step_backward2_##suffix, StepBackward<T, 2>)                 \
  X(slimgrad_step_backward3_##suffix, StepBackward<T, 3>)                 \
  X(slimgrad_step_backward4_##suffix, StepBackward<T, 4>)                 \
  X(slimgrad_inverse_backward_##suffix, InverseBackward<T>)               \
  X(slimgrad_pack_saved8_##suffix, PackSaved<T, 8>)                       \
  X(slimgrad_pack_saved4_##suffix, PackSaved<T, 4>)                       \
  X(slimgrad_pack_saved2_##suffix, PackSaved<T, 2>)                       \
  X(slimgrad_unpack_saved8_##suffix, UnpackSaved<T, 8>)                   \
  X(slimgrad_unpack_saved4_##suffix, UnpackSaved<T, 4>)                   \
  X(slimgrad_unpack_saved2_##suffix, UnpackSaved<T, 2>)                   \
  X(slimgrad_measure_chunks_##suffix, MeasureChunks<T>)                   \
  X(slimgrad_max_magnitude_##suffix, MaxMagnitude<T>)                     \
  X(slimgrad_gate_see_##suffix, GateSee<T>)                               \
  X(slimgrad_gate_apply_##suffix, GateApply<T>)                           \
  X(slimgrad_gate_compare_##suffix, GateCompare<T>)                       \
  X(slimgrad_pack_##suffix, PackValues<T>)                                \
  X(slimgrad_unpack_##suffix, UnpackValues<T>)                            \
  X(slimgrad_uniform_encode_##suffix, UniformEncode<T>)                   \
  X(slimgrad_uniform_decode_##suffix, UniformDecode<T>)

// Those of one width of values, for which only zeros differ from others.
#define SLIMGRAD_DEVICE_KERNELS_OF_WORDS(X, suffix, Word)   \
  X(slimgrad_count_survivors_##suffix, CountSurvivors<Word>) \
  X(slimgrad_split_exact_##suffix, SplitExact<Word>)         \
  X(slimgrad_merge_exact_##suffix, MergeExact<Word>)
// clang-format on

namespace slimgrad::device {

template <class Kernel>
inline constexpr const char* kKernelName = nullptr;
#define SLIMGRAD_NAME(name, ...) \
  template <>                    \
  inline constexpr const char* kKernelName<__VA_ARGS__> = #name;
SLIMGRAD_DEVICE_KERNELS(SLIMGRAD_NAME)
#undef SLIMGRAD_NAME

// All entry points, in the order of the list.
inline std::span<const char* const> kernel_names() {
#define SLIMGRAD_NAME(name, ...) #name,
  static constexpr const char* kNames[] = {SLIMGRAD_DEVICE_KERNELS(SLIMGRAD_NAME)};
#undef SLIMGRAD_NAME
  return kNames;
}

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_KERNEL_LIST_H_
