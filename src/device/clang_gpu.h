// What kernels.cu needs of a GPU, in clang's builtins alone, without a header of CUDA or ROCm. Not
// included: a build by clang puts it in front of everything (-include).
#ifndef SLIMGRAD_DEVICE_CLANG_GPU_H_
#define SLIMGRAD_DEVICE_CLANG_GPU_H_

#include <cstdlib>  // clang's <new> for CUDA uses it

#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __grid_constant__
#ifndef __CUDACC__
#define __CUDACC__ 1
#endif

struct Index3 {
  unsigned x;
};

#if defined(__AMDGCN__)

#define threadIdx (Index3{__builtin_amdgcn_workitem_id_x()})
#define blockIdx (Index3{__builtin_amdgcn_workgroup_id_x()})
__device__ inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T>
__device__ inline T __shfl_xor_sync(unsigned, T x, int mask) {
  static_assert(sizeof(T) == 4);
  const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  const int other = __builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, __builtin_bit_cast(int, x));
  return __builtin_bit_cast(T, other);
}
template <class T>
__device__ inline void atomicAdd(T* sum, T x) {
  __atomic_fetch_add(sum, x, __ATOMIC_RELAXED);
}
template <class T>
__device__ inline void atomicMax(T* maximum, T x) {
  __atomic_fetch_max(maximum, x, __ATOMIC_RELAXED);
}

#elif defined(__NVPTX__)

#define threadIdx (Index3{static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_x())})
#define blockIdx (Index3{static_cast<unsigned>(__nvvm_read_ptx_sreg_ctaid_x())})
template <class T>
__device__ inline T __shfl_xor_sync(unsigned all, T x, int mask) {
  static_assert(sizeof(T) == 4);
  const int other = __nvvm_shfl_sync_bfly_i32(all, __builtin_bit_cast(int, x), mask, 31);
  return __builtin_bit_cast(T, other);
}
__device__ inline void atomicAdd(unsigned* sum, unsigned x) {
  __nvvm_atom_add_gen_i(reinterpret_cast<int*>(sum), static_cast<int>(x));
}
__device__ inline void atomicAdd(unsigned long long* sum, unsigned long long x) {
  __nvvm_atom_add_gen_ll(reinterpret_cast<long long*>(sum), static_cast<long long>(x));
}
__device__ inline void atomicMax(unsigned* maximum, unsigned x) {
  __nvvm_atom_max_gen_ui(maximum, x);
}

#else  // what is compiled for the host is thrown away

#define threadIdx (Index3{0})
#define blockIdx (Index3{0})

#endif

#endif  // SLIMGRAD_DEVICE_CLANG_GPU_H_
