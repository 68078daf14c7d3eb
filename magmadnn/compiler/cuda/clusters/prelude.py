"""What blocks of a cluster do together as CUDA C++: each other's memory, barriers, copies beside other work.

The emulated device of the tests brings functions of its own under the same names.
"""

from __future__ import annotations

CLUSTERS = r"""
#ifdef __CUDA_ARCH__
#define CLUSTER_MEMORY(bytes)
namespace clusters {
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 rank_of() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place in the memory of another block.
__device__ __forceinline__ u32 address_there(const void *p, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}
__device__ __forceinline__ void store_there(float4 *p, u32 rank, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_there(p, rank)), "f"(v.x),
    "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ float load_there(const float *p, u32 rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_there(p, rank)) : "memory");
  return v;
}
__device__ __forceinline__ double load_there(const double *p, u32 rank) {
  double v;
  asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(v) : "r"(address_there(p, rank)) : "memory");
  return v;
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Of two warps.
__device__ __forceinline__ void pair_barrier(int pair) {
  asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}
__device__ __forceinline__ u32 tf32(float v) {
  u32 rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
  return rounded;
}
__device__ __forceinline__ void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Signals: copies of whole rows say how many bytes have come.
__device__ __forceinline__ void make_signal(u64 *signal) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(signal)) : "memory");
}
__device__ __forceinline__ void signals_are_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void expect(u64 *signal, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(signal)),
    "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_row(float *to, const float *from, u32 bytes, u64 *signal) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(signal))
    : "memory");
}
__device__ __forceinline__ void wait_for(u64 *signal, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(shared_address(signal)), "r"(parity) : "memory");
}
// Single numbers; who asked for them waits for all of them at once.
template <typename T> __device__ __forceinline__ void copy_number(T *to, const T *from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a copy of 4 or 8 bytes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)),
    "l"(__cvta_generic_to_global(from)), "n"(sizeof(T)) : "memory");
}
__device__ __forceinline__ void wait_for_numbers() { asm volatile("cp.async.wait_all;" ::: "memory"); }
}
#endif
namespace clusters {
// Hardware cuts what is behind TF32's digits off: half of its last digit added before rounds to nearest.
__device__ __forceinline__ u32 cut_soon(float v) { return __float_as_uint(v) + 0x1000u; }
}
"""
