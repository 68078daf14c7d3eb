"""How a step of 16 k is multiplied: one CUDA C++ text for each arithmetic.

Lane (g, t) holds a[h][q], row g + 8h, and b[q], column g, both for k = 4t + q. It adds to c[2h + e], row
g + 8h, column 2t + e. Tensor cores multiply whatever k both operands agree on, so each instruction takes
those k of a step that lie in registers next to each other. Where there are none, lanes hand each other what
they hold, and each element is one chain of fused multiply-adds in the order of k.
"""

from __future__ import annotations

_EXACT = r"""
template <class Number> struct Exact {
  typedef Number Item;
  struct A { Number v[2][4]; };
  struct B { Number v[4]; };
  static __device__ __forceinline__ A rows(const Number (&x)[2][4]) {
    A a;
#pragma unroll
    for (int i = 0; i < 8; i++) a.v[i / 4][i % 4] = x[i / 4][i % 4];
    return a;
  }
  static __device__ __forceinline__ B columns(const Number (&x)[4]) {
    B b;
#pragma unroll
    for (int i = 0; i < 4; i++) b.v[i] = x[i];
    return b;
  }
  template <int MT, int NT>
  static __device__ __forceinline__ void multiply(Number (&c)[MT][NT][4], const A (&a)[MT],
                                                  const B (&b)[NT]) {
    const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll 1
    for (int from = 0; from < 4; from++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Number x[MT][2], y[NT][2];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
          x[i / 2][i % 2] = __shfl_sync(~0u, a[i / 2].v[i % 2][q], row + from);
#pragma unroll
        for (int i = 0; i < 2 * NT; i++)
          y[i / 2][i % 2] = __shfl_sync(~0u, b[i / 2].v[q], column + i % 2 * 4 + from);
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
          Number &sum = c[i / (NT * 4)][i / 4 % NT][i % 4];
          sum = fma(x[i / (NT * 4)][i / 2 % 2], y[i / 4 % NT][i % 2], sum);
        }
      }
  }
};
typedef Exact<float> Float32;
"""

# Instructions that add to the same elements wait for each other, so those of others come between.
_EACH_TILE = r"""
  template <int MT, int NT>
  static __device__ __forceinline__ void multiply(Item (&c)[MT][NT][4], const A (&a)[MT], const B (&b)[NT]) {
#pragma unroll
    for (int q = 0; q < 4; q += TOGETHER)
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) tile(c[m][j], a[m], b[j], q);
  }
"""

_TF32 = r"""
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
struct Tf32 {
  typedef float Item;
  static constexpr int TOGETHER = 2;  // k of a lane that an instruction takes
  struct A { u32 v[2][4]; };
  struct B { u32 v[4]; };
  // Tensor cores cut off the last 13 bits. One multiplication makes that a rounding to nearest: to within 0.2
  // units of the tie, without bias, NaN and infinities kept. The instruction that converts is eight times
  // slower.
  static __device__ __forceinline__ u32 rounded(float x) { return __float_as_uint(x * 1.000338f); }
  static __device__ __forceinline__ A rows(const float (&x)[2][4]) {
    A a;
#pragma unroll
    for (int i = 0; i < 8; i++) a.v[i / 4][i % 4] = rounded(x[i / 4][i % 4]);
    return a;
  }
  static __device__ __forceinline__ B columns(const float (&x)[4]) {
    B b;
#pragma unroll
    for (int i = 0; i < 4; i++) b.v[i] = rounded(x[i]);
    return b;
  }
  static __device__ __forceinline__ void tile(float (&c)[4], const A &a, const B &b, int q) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.v[0][q]), "r"(a.v[1][q]), "r"(a.v[0][q + 1]), "r"(a.v[1][q + 1]),
        "r"(b.v[q]), "r"(b.v[q + 1]));
  }
EACH_TILE};
#else
typedef Exact<float> Tf32;
#endif
"""

_FLOAT64 = r"""
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
struct Float64 : Exact<double> {
  static constexpr int TOGETHER = 1;
  static __device__ __forceinline__ void tile(double (&c)[4], const A &a, const B &b, int q) {
#pragma unroll
    for (int h = 0; h < 2; h++)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c[2 * h]), "+d"(c[2 * h + 1]) : "d"(a.v[h][q]), "d"(b.v[q]));
  }
EACH_TILE};
#else
typedef Exact<double> Float64;
#endif
"""

# The struct of each.
ARITHMETIC = {"float32": "Float32", "tf32": "Tf32", "float64": "Float64"}

_TENSOR_CORES = (_TF32 + _FLOAT64).replace("EACH_TILE", _EACH_TILE.strip("\n") + "\n")
ARITHMETIC_TEXT = f"\nnamespace gemm {{{_EXACT}{_TENSOR_CORES}}}  // namespace gemm\n"
