// How a kernel is written, once, for GPUs and for the host: for a block of threads, in steps.
// each() runs a step on every thread of the block, and a step sees what all threads did in the
// steps before. What a thread keeps from one step to the next is a PerThread; what threads share is
// in the kernel's Shared. On a GPU a step is the code of one thread and a barrier; on the host it
// is a loop over the threads, in any order.
//
// Compiles as CUDA, as HIP and as C++. Everything outside a step is executed by all threads of a
// GPU and must be the same for all of them.
#ifndef SLIMGRAD_DEVICE_BLOCK_H_
#define SLIMGRAD_DEVICE_BLOCK_H_

#include <cstddef>
#include <cstdint>
#if !defined(__CUDACC__) && !defined(__HIPCC__)
#include <atomic>
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define SLIMGRAD_HD __host__ __device__ __forceinline__
#define SLIMGRAD_UNROLL _Pragma("unroll")
#define SLIMGRAD_UNROLL_4 _Pragma("unroll 4")
#else
#define SLIMGRAD_HD inline
#define SLIMGRAD_UNROLL
#define SLIMGRAD_UNROLL_4
#endif
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define SLIMGRAD_ON_DEVICE 1
#else
#define SLIMGRAD_ON_DEVICE 0
#endif

namespace slimgrad::device {

// Threads that exchange values without shared memory. AMD's have 64 lanes; half of one serves.
inline constexpr int kWarp = 32;

template <typename T, int kThreads>
struct PerThread {
#if SLIMGRAD_ON_DEVICE
  T value;
  SLIMGRAD_HD T& operator[](int) { return value; }
  SLIMGRAD_HD const T& operator[](int) const { return value; }
#else
  T values[kThreads];
  SLIMGRAD_HD T& operator[](int thread) { return values[thread]; }
  SLIMGRAD_HD const T& operator[](int thread) const { return values[thread]; }
#endif
};

template <int kNumThreads>
struct Block {
  static constexpr int kThreads = kNumThreads;
  static_assert(kThreads % kWarp == 0 && (kThreads & (kThreads - 1)) == 0);

  std::uint64_t index;        // of the block in its grid
  std::uint32_t shuffle = 0;  // on the host: which order threads have; 0 is the plain one

  template <typename T>
  using PerThread = device::PerThread<T, kThreads>;

  template <class Step>
  SLIMGRAD_HD void each(const Step& step) const {
#if SLIMGRAD_ON_DEVICE
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
#else
    for (std::uint32_t i = 0; i < kThreads; ++i) step(thread_at(i));
#endif
  }

  // A reduction inside groups of `size` neighbours, a power of two up to kWarp; everyone gets it.
  // The tree is the same everywhere: so are the bits, also where the operation is a float's.
  template <typename T, class Join>
  SLIMGRAD_HD void reduce(PerThread<T>& value, int size, const Join& join) const {
    for (int mask = 1; mask < size; mask *= 2) {
#if SLIMGRAD_ON_DEVICE
      value.value = join(value.value, __shfl_xor_sync(0xffffffffu, value.value, mask));
#else
      const PerThread<T> before = value;
      for (int thread = 0; thread < kThreads; ++thread)
        value[thread] = join(before[thread], before[thread ^ mask]);
#endif
    }
  }

 private:
  SLIMGRAD_HD int thread_at(std::uint32_t i) const {
    return static_cast<int>(shuffle == 0 ? i : (i * (2 * shuffle + 1) + shuffle) % kThreads);
  }
};

// What a launch moves between memory and the chip, in bytes: what a block reads twice stays in a
// cache, and counters are not counted. Costs are predicted from it, and bandwidth is measured by
// it.
struct Traffic {
  std::uint64_t read, written;
};

// ---- memory that several threads write to ------------------------------------------------------
// Integers only: their sums, unions and maxima do not depend on the order.

SLIMGRAD_HD void add_to(std::uint32_t* sum, std::uint32_t x) {
#if SLIMGRAD_ON_DEVICE
  atomicAdd(sum, x);
#elif defined(__CUDACC__) || defined(__HIPCC__)
  *sum += x;
#else
  std::atomic_ref(*sum).fetch_add(x, std::memory_order_relaxed);
#endif
}
SLIMGRAD_HD void add_to(std::uint64_t* sum, std::uint64_t x) {
#if SLIMGRAD_ON_DEVICE
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
#elif defined(__CUDACC__) || defined(__HIPCC__)
  *sum += x;
#else
  std::atomic_ref(*sum).fetch_add(x, std::memory_order_relaxed);
#endif
}
SLIMGRAD_HD void raise_to(std::uint32_t* maximum, std::uint32_t x) {
#if SLIMGRAD_ON_DEVICE
  atomicMax(maximum, x);
#else
  if (*maximum < x) *maximum = x;  // The host's blocks and threads follow each other.
#endif
}

// ---- arithmetic --------------------------------------------------------------------------------

// Rounded once, as IEEE says.
struct SquareRoot {
  SLIMGRAD_HD double operator()(double x) const {
#if SLIMGRAD_ON_DEVICE && defined(__NVCC__)
    return __dsqrt_rn(x);
#else
    return __builtin_sqrt(x);
#endif
  }
};

// ---- 16 bytes in one access --------------------------------------------------------------------

template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};
template <typename T>
SLIMGRAD_HD bool is_aligned(const T* data, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}
template <typename T>
SLIMGRAD_HD Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <typename T>
SLIMGRAD_HD void store_pack(const Pack<T>& pack, T* to) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// The values of a pack that are there: all, unless the array ends inside it. `aligned`: whether it
// may be loaded as one.
template <typename T>
SLIMGRAD_HD Pack<T> load_some(const T* from, int valid, bool aligned) {
  if (aligned && valid == Pack<T>::kSize) return load_pack(from);
  Pack<T> pack = {};
  SLIMGRAD_UNROLL
  for (int j = 0; j < Pack<T>::kSize; ++j)
    if (j < valid) pack.values[j] = from[j];
  return pack;
}
template <typename T>
SLIMGRAD_HD void store_some(const Pack<T>& pack, T* to, int valid, bool aligned) {
  if (aligned && valid == Pack<T>::kSize) return store_pack(pack, to);
  SLIMGRAD_UNROLL
  for (int j = 0; j < Pack<T>::kSize; ++j)
    if (j < valid) to[j] = pack.values[j];
}

// How many of `wanted` values from `at` on an array of `size` has.
SLIMGRAD_HD int values_from(std::uint64_t at, std::uint64_t size, int wanted) {
  return at >= size                                       ? 0
         : size - at < static_cast<std::uint64_t>(wanted) ? static_cast<int>(size - at)
                                                          : wanted;
}

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_BLOCK_H_
