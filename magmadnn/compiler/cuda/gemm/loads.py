"""The CUDA C++ text with which products fetch their operands."""

from __future__ import annotations

LOADS = r"""
namespace gemm {

// v[0..V) from `at`, or zeros. Loads stay in the order written: all are under way before the first use.
template <int V, class T> __device__ __forceinline__ void load(T *v, const T *at, bool there) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8 && V == 4) {
    load<2>(v, at, there);
    load<2>(v + 2, at + 2, there);
  } else if constexpr (sizeof(T) == 8 && V == 2)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.f64 %0, 0d0000000000000000;"
      "mov.f64 %1, 0d0000000000000000; @p ld.global.v2.f64 {%0, %1}, [%2];}"
      : "=&d"(v[0]), "=&d"(v[1]) : "l"(at), "r"((int)there) : "memory");
  else if constexpr (sizeof(T) == 8)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.f64 %0, 0d0000000000000000;"
      "@p ld.global.f64 %0, [%1];}" : "=&d"(v[0]) : "l"(at), "r"((int)there) : "memory");
  else if constexpr (V == 4)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000;"
      "mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
      : "=&f"(v[0]), "=&f"(v[1]), "=&f"(v[2]), "=&f"(v[3]) : "l"(at), "r"((int)there) : "memory");
  else if constexpr (V == 2)
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000;"
      "@p ld.global.v2.f32 {%0, %1}, [%2];}"
      : "=&f"(v[0]), "=&f"(v[1]) : "l"(at), "r"((int)there) : "memory");
  else
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.f32 %0, 0f00000000;"
      "@p ld.global.f32 %0, [%1];}" : "=&f"(v[0]) : "l"(at), "r"((int)there) : "memory");
#else
  for (int i = 0; i < V; i++) v[i] = there ? at[i] : T(0);
#endif
}
// The same from halves, which are float32 in registers.
template <int V, class Half>
__device__ __forceinline__ void load_halves(float *v, const Half *at, bool there) {
  Half x[V];
#ifdef __CUDA_ARCH__
  if constexpr (V == 4) {
    u32 low, high;
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0;"
      "@p ld.global.v2.u32 {%0, %1}, [%2];}"
      : "=&r"(low), "=&r"(high) : "l"(at), "r"((int)there) : "memory");
    x[0].bits = low, x[1].bits = low >> 16, x[2].bits = high, x[3].bits = high >> 16;
  } else if constexpr (V == 2) {
    u32 both;
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u32 %0, [%1];}"
      : "=&r"(both) : "l"(at), "r"((int)there) : "memory");
    x[0].bits = both, x[1].bits = both >> 16;
  } else
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.u16 %0, [%1];}"
      : "=&h"(x[0].bits) : "l"(at), "r"((int)there) : "memory");
#else
  for (int i = 0; i < V; i++) x[i] = there ? at[i] : Half{0};
#endif
#pragma unroll
  for (int i = 0; i < V; i++) v[i] = as_float(x[i]);
}
template <int V> __device__ __forceinline__ void load(float *v, const bfloat16 *at, bool there) {
  load_halves<V>(v, at, there);
}
template <int V> __device__ __forceinline__ void load(float *v, const float16 *at, bool there) {
  load_halves<V>(v, at, there);
}
// An element of an operand as it is computed with.
template <class T> __device__ __forceinline__ T widened(T x) { return x; }
__device__ __forceinline__ float widened(bfloat16 x) { return as_float(x); }
__device__ __forceinline__ float widened(float16 x) { return as_float(x); }
// V elements as they are into shared memory, without waiting for them.
template <int V, class T> __device__ __forceinline__ void copy(T *to, const T *at, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr int BYTES = V * (int)sizeof(T);
  const u32 goal = (u32)__cvta_generic_to_shared(to);
  if constexpr (BYTES > 16) {
    copy<V / 2>(to, at, there);
    copy<V / 2>(to + V / 2, at + V / 2, there);
  } else if constexpr (BYTES < 4)
    to[0] = there ? at[0] : T{0};
  else if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(goal), "l"(at), "n"(BYTES),
      "r"(there ? BYTES : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(goal), "l"(at), "n"(BYTES),
      "r"(there ? BYTES : 0) : "memory");
#else
  for (int i = 0; i < V; i++) to[i] = there ? at[i] : T{0};
#endif
}
// COUNT neighbouring elements of shared memory, together where they lie so.
template <int COUNT, class T> __device__ __forceinline__ void near(T *v, const T *at) {
  const Vec<T, COUNT> all = ::load<COUNT>(at);
#pragma unroll
  for (int i = 0; i < COUNT; i++) v[i] = all.at[i];
}
// Copies so far are a group; wait for all groups but the last ones.
__device__ __forceinline__ void end_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LAST> __device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LAST) : "memory");
#endif
}
// COUNT neighbouring elements of a line, of which those before `left` exist; V at a time. NEAR: they may lie
// in shared memory.
template <int COUNT, int V, bool NEAR = false, class T, class Stored>
__device__ __forceinline__ void load_line(T *v, const Stored *at, int left) {
  constexpr int W = COUNT % V == 0 ? V : COUNT % 2 == 0 && V > 1 ? 2 : 1;
#pragma unroll
  for (int i = 0; i < COUNT; i += W) {
    if constexpr (NEAR) {
#pragma unroll
      for (int j = 0; j < W; j++) v[i + j] = i < left ? widened(at[i + j]) : T(0);
    } else
      load<W>(v + i, at + i, i < left);
  }
}

}  // namespace gemm
"""
