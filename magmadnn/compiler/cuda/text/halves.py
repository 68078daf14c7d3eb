"""bfloat16 and float16 as CUDA C++: 16 bits in memory, float32 in registers.

Where the device has no instruction for it, a conversion is integer arithmetic on the bits, the same as the
processor's (`llvm/ir/halves.py`): rounded to nearest, ties to even; subnormal numbers are kept, what is
too large becomes an infinity, NaN stays NaN.
"""

from __future__ import annotations

HALVES_TEXT = r"""
struct bfloat16 { unsigned short bits; };
struct float16 { unsigned short bits; };

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float as_float(bfloat16 x) { return make_f32((u32)x.bits << 16); }
__device__ __forceinline__ bfloat16 as_bfloat16(float x) {
  bfloat16 made;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made.bits) : "f"(x));
#else
  const u32 bits = bits_of(x), high = bits >> 16;
  made.bits = x != x ? (high & 0x8000) | 0x7FC0 : (bits + 0x7FFF + (high & 1)) >> 16;
#endif
  return made;
}
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float as_float(float16 x) {
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(x.bits));
  return made;
}
__device__ __forceinline__ float16 as_float16(float x) {
  float16 made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(x));
  return made;
}
#else
__device__ __forceinline__ float as_float(float16 x) {
  const u32 rebias = (127 - 15) << 23, exponent = x.bits & 0x7C00;
  u32 size = ((u32)(x.bits & 0x7FFF) << 13) + rebias;
  if (exponent == 0x7C00) size += rebias;
  if (exponent == 0) size = bits_of(make_f32(size + (1 << 23)) - make_f32(0x38800000u));
  return make_f32(size | (u32)(x.bits & 0x8000) << 16);
}
__device__ __forceinline__ float16 as_float16(float x) {
  const u32 bits = bits_of(x), size = bits & 0x7FFFFFFF, payload = (size & 0x7FFFFF) >> 13;
  u32 made = (size - ((127 - 15) << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  if (size < 0x38800000u) made = bits_of(make_f32(size) + 0.5f) - 0x3F000000u;
  if (size >= 0x47800000u) made = size > 0x7F800000u ? (payload ? payload : 1) | 0x7C00 : 0x7C00;
  return {(unsigned short)(made | (bits >> 16 & 0x8000))};
}
#endif
"""
