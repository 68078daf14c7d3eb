"""What the text of every module begins with: vectors, conversions, reductions of a group of threads."""

from __future__ import annotations

BEGIN = "  wait_for_earlier_kernels();\n  let_later_kernels_start();\n"

PRELUDE = r"""
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;
typedef unsigned int u32;

#ifdef __CUDA_ARCH__
struct Index { u32 x, y, z; };
extern __shared__ __align__(16) char memory[];
#define SHARED_MEMORY(bytes)
#endif

// Kernels of a graph begin while earlier ones still run. So each waits, before it reads or writes what those
// touch, until they are done and what they wrote is seen; only then may later ones begin.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_later_kernels_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Where a thread is, for kernels that are parts of others; an argument of a kernel, number or address.
struct Place {
  Index blockIdx, threadIdx, blockDim, gridDim;
};
template <int N> struct Arguments { i64 at[N]; };
struct Given {
  i64 value;
  __device__ __forceinline__ operator i64() const { return value; }
  template <class T> __device__ __forceinline__ operator T *() const { return (T *)value; }
};

// V elements that are loaded and stored together.
template <typename T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) Vec { T at[V]; };

template <int V, typename T> __device__ __forceinline__ Vec<T, V> load(const T *from) {
  return *reinterpret_cast<const Vec<T, V> *>(from);
}

template <int V, typename T> __device__ __forceinline__ void store(T *to, const Vec<T, V> &value) {
  *reinterpret_cast<Vec<T, V> *>(to) = value;
}

// The same as one instruction, where the compiler may not see that members lie together.
template <int V, typename T> __device__ __forceinline__ void store_at_once(T *to, const Vec<T, V> &value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) * V == 16) {
    u32 word[4];
    memcpy(word, &value, 16);
    asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
      "r"(word[3]) : "memory");
    return;
  }
#endif
  store<V>(to, value);
}

// Where a row of an operand with strides begins, in elements: its number as numbers along N axes, the first
// of any size, times steps. Quotients of 32 bits take a fraction of the time.
template <int N> struct PerAxis { i64 at[N]; };

template <int N>
__device__ __forceinline__ i64 strided_row(i64 row, const PerAxis<N - 1> sizes, const PerAxis<N> steps) {
  i64 place = 0;
#pragma unroll
  for (int axis = N - 1; axis > 0; --axis) {
    const i64 size = sizes.at[axis - 1];
    const i64 outer = ((row | size) >> 32) == 0 ? (i64)((u32)row / (u32)size) : row / size;
    place += (row - outer * size) * steps.at[axis];
    row = outer;
  }
  return place + row * steps.at[0];
}

// A row of an operand with a constant around it: where it begins, and whether it is the operand's at all.
struct PaddedRow { i64 begin; bool inside; };

template <int N>
__device__ __forceinline__ PaddedRow padded_row(i64 row, i64 origin, const PerAxis<N> sizes,
                                                const PerAxis<N> steps, const PerAxis<N> firsts,
                                                const PerAxis<N> ends) {
  PaddedRow place = {-origin, true};
#pragma unroll
  for (int axis = N - 1; axis >= 0; --axis) {
    i64 index = row;
    if (axis > 0) {
      const i64 size = sizes.at[axis];
      const i64 outer = ((row | size) >> 32) == 0 ? (i64)((u32)row / (u32)size) : row / size;
      index = row - outer * size;
      row = outer;
    }
    place.begin += index * steps.at[axis];
    place.inside = place.inside && index >= firsts.at[axis] && index < ends.at[axis];
  }
  return place;
}

template <int V, typename T> __device__ __forceinline__ Vec<T, V> filled(T x) {
  Vec<T, V> value;
#pragma unroll
  for (int i = 0; i < V; ++i) value.at[i] = x;
  return value;
}

// V elements of a row, or the constant around it.
template <int V, typename T>
__device__ __forceinline__ Vec<T, V> load_padded(const T *from, PaddedRow place, i64 column, bool inside,
                                                 T fill) {
  Vec<T, V> value = filled<V>(fill);
  if (place.inside && inside) value = load<V>(from + place.begin + column);
  return value;
}

// Read a byte that will be used later, so that it lies in the nearest cache by then.
__device__ __forceinline__ void touch(const void *at) {
#ifdef __CUDA_ARCH__
  u32 byte;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(byte) : "l"(at) : "memory");
#endif
}

__device__ __forceinline__ float make_f32(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ double make_f64(u64 bits) { return __longlong_as_double((i64)bits); }

// Truncated; the least integer for NaN and what is out of range, as NumPy has it on x86.
template <typename T> __device__ __forceinline__ int to_int(T x) {
  return x >= T(-0x1p31) && x < T(0x1p31) ? (int)x : (int)0x80000000u;
}
template <typename T> __device__ __forceinline__ i64 to_i64(T x) {
  return x >= T(-0x1p63) && x < T(0x1p63) ? (i64)x : (i64)0x8000000000000000ull;
}

// NumPy's minimum and maximum: NaN is passed on.
template <typename T> __device__ __forceinline__ T least(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> __device__ __forceinline__ T most(T a, T b) { return a > b || a != a ? a : b; }
// The same of many, where of 0 and -0 either will do.
template <typename T> __device__ __forceinline__ T smallest(T a, T b) { return least(a, b); }
template <typename T> __device__ __forceinline__ T largest(T a, T b) { return most(a, b); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ float smallest(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float largest(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#endif
template <typename T> __device__ __forceinline__ T plus(T a, T b) { return a + b; }
template <typename T> __device__ __forceinline__ T times(T a, T b) { return a * b; }

template <typename T> __device__ __forceinline__ T sign_of(T x) {
  return x != x ? x : T(x > T(0)) - T(x < T(0));
}

// Division and remainder that round towards minus infinity, as NumPy's; for integers 0 where b is 0.
__device__ __forceinline__ i64 floor_divide(i64 a, i64 b) {
  if (b == 0) return 0;
  if (b == -1) return (i64)(0 - (u64)a);
  i64 q = a / b, r = a % b;
  return q - (r != 0 && (r < 0) != (b < 0));
}
__device__ __forceinline__ int floor_divide(int a, int b) { return (int)floor_divide((i64)a, (i64)b); }
__device__ __forceinline__ i64 remainder_of(i64 a, i64 b) {
  if (b == 0 || b == -1) return 0;
  i64 r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
__device__ __forceinline__ int remainder_of(int a, int b) { return (int)remainder_of((i64)a, (i64)b); }
__device__ __forceinline__ float mod_of(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double mod_of(double a, double b) { return fmod(a, b); }
__device__ __forceinline__ float sign_like(float a, float b) { return copysignf(a, b); }
__device__ __forceinline__ double sign_like(double a, double b) { return copysign(a, b); }
__device__ __forceinline__ float floor_of(float a) { return floorf(a); }
__device__ __forceinline__ double floor_of(double a) { return ::floor(a); }
template <typename T> __device__ __forceinline__ void divided(T a, T b, T &quotient, T &modulo) {
  T rest = mod_of(a, b);
  bool other_side = rest != T(0) && (b < T(0)) != (rest < T(0));
  modulo = rest == T(0) ? sign_like(rest, b) : other_side ? rest + b : rest;
  T q = (a - rest) / b;
  q = other_side ? q - T(1) : q;
  T low = floor_of(q);
  low = q - low > T(0.5) ? low + T(1) : low;
  low = q == T(0) ? sign_like(q, a / b) : low;
  quotient = b == T(0) ? a / b : low;
  if (b == T(0)) modulo = mod_of(a, b);
}
__device__ __forceinline__ float floor_divide(float a, float b) {
  float q, r;
  divided(a, b, q, r);
  return q;
}
__device__ __forceinline__ double floor_divide(double a, double b) {
  double q, r;
  divided(a, b, q, r);
  return q;
}
__device__ __forceinline__ float remainder_of(float a, float b) {
  float q, r;
  divided(a, b, q, r);
  return r;
}
__device__ __forceinline__ double remainder_of(double a, double b) {
  double q, r;
  divided(a, b, q, r);
  return r;
}
"""
