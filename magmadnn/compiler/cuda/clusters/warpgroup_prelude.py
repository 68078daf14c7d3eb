"""What warpgroups do as CUDA C++: products of tiles in shared memory, barriers of some warps, bulk copies.

The emulated device of the tests brings functions of its own under the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

_PRELUDE = r"""
#ifdef __CUDA_ARCH__
namespace clusters {
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A barrier of so many threads of a block: who arrives does not wait.
__device__ __forceinline__ void group_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void group_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
template <int N> __device__ __forceinline__ void registers_less() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// What a thread has written is seen by products of tiles and bulk copies.
__device__ __forceinline__ void fence_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void send(void *to, const void *from, u32 bytes, u64 *signal, u32 rank) {
  asm volatile(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    ::"r"(address_there(to, rank)), "r"(shared_address(from)), "r"(bytes), "r"(address_there(signal, rank))
    : "memory");
}
__device__ __forceinline__ void copy_quad(void *to, const float *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)),
    "l"(__cvta_generic_to_global(from)) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void tiles_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void tiles_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void tiles_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void tiles_held(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ u64 tile(const void *p, u32 lead, u32 stride) {
  return (u64)((shared_address(p) & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32;
}
}
#endif
"""


def warpgroup_library(columns: Sequence[int]) -> str:
    """All functions.

    Args:
        columns: of the products: the first has its left factor in registers, the others in shared memory.
    """
    tiles = "".join(_product(n, k == 0) for k, n in enumerate(columns))
    return f"{_PRELUDE}#ifdef __CUDA_ARCH__\nnamespace clusters {{\n{tiles}}}\n#endif\n"


def _product(columns: int, by_registers: bool) -> str:
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    factor = ", ".join(f"%{count + i}" for i in range(4)) if by_registers else f"%{count}"
    factor, b = (f"{{{factor}}}", count + 4) if by_registers else (factor, count + 1)
    given = "u32 a0, u32 a1, u32 a2, u32 a3" if by_registers else "u64 a"
    values = '"r"(a0), "r"(a1), "r"(a2), "r"(a3)' if by_registers else '"l"(a)'
    places = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f"__device__ __forceinline__ void multiply_tiles(float (&d)[{count}], {given}, u64 b, int add) {{\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{b + 1}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32 {{{sums}}}, "\n'
        f'    "{factor}, %{b}, p, 1, 1; }}"\n'
        f'    : {places} : {values}, "l"(b), "r"(add));\n}}\n'
    )
