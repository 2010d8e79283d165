// Instructions that CUDA C++ has no name for.
#pragma once
#include "common.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INLINE __device__ __forceinline__

constexpr uint32_t WARP = 0xffffffffu;

INLINE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- barriers in shared memory that count arrivals and bytes

INLINE void barrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
// Makes the inits visible to the copy engine.
INLINE void barrier_init_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
INLINE void barrier_arrive(uint32_t bar) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(bar) : "memory");
}
INLINE void barrier_wait(uint32_t bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again; }" ::"r"(bar), "r"(parity) : "memory");
#else
    uint32_t done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
#endif
}

// ---- copies from global to shared memory that run beside the program

// A warp copies `bytes` (a multiple of 16) and lets the barrier know. `expect_bytes` must announce them first on sm_90;
// before sm_90 all 32 lanes arrive at the barrier, once for all copies of a stage, with `copies_arrive`.
INLINE void expect_bytes(uint32_t bar, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}
INLINE void bulk_copy(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src),
        "r"(bytes), "r"(bar) : "memory");
#endif
}
INLINE void copy16(uint32_t dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
// 16 bytes, zeros where `keep` is false.
INLINE void copy16_or_zero(uint32_t dst, const void* src, bool keep) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(keep ? 16 : 0) : "memory");
}
INLINE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
INLINE void copies_arrive(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

// Into the cache that all multiprocessors share.
INLINE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// A run of bytes: both are multiples of 16. Devices without bulk copies fetch nothing.
INLINE void prefetch_run(const void* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// ---- tensor cores

INLINE void load_matrices(uint32_t address, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
INLINE void load_matrices_transposed(uint32_t address, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// c[16 x 8] += a[16 x 16] b[16 x 8], f32 sums.
template <bool BF16>
INLINE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    if constexpr (BF16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// d[16 x 8] = a[16 x 32] b[32 x 8] + start, of int8.
INLINE void mma_s8(uint32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, uint32_t start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start));
}
// d[16 x 8] = a[16 x 16] b[16 x 8] + start, of int8.
INLINE void mma_s8(uint32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, uint32_t start) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(start));
}
// c[16 x 8] += a[16 x 8] b[8 x 8], of which the first 11 bits of each number count; f32 sums.
INLINE void mma_tf32(float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Counts this arrival; what the thread, and those that met it at a barrier before, wrote is seen by who arrives later, and
// by those that meet that one at a barrier after.
INLINE uint32_t arrive_at(uint32_t* counter) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before + 1;
}

// Says that what the thread, and those that met it at a barrier before, wrote is seen by who waits for it.
INLINE void set(uint32_t* flag) { asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory"); }
INLINE void wait_until_set(const uint32_t* flag) {
    uint32_t value;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    } while (value == 0);
}

// ---- clusters of blocks, on devices that have them

#if __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
// Blocks along the first dimension.
INLINE uint32_t cluster_blocks() {
    uint32_t blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    return blocks;
}
// All threads of the cluster that have not ended; what they wrote to shared memory before is seen after.
INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
INLINE void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}
// What lies at a place of this block's shared memory in that of another block of the cluster.
INLINE uint32_t address_in_block(const void* p, uint32_t block) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
    return address;
}
INLINE float2 load_of_block2(const void* p, uint32_t block) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address_in_block(p, block)) : "memory");
    return v;
}
INLINE float4 load_of_block4(const void* p, uint32_t block) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address_in_block(p, block)) : "memory");
    return v;
}
#else
constexpr bool HAS_CLUSTERS = false;
INLINE constexpr uint32_t cluster_blocks() { return 1; }
INLINE void cluster_arrive() {}
INLINE void cluster_wait() {}
INLINE void cluster_barrier() {}
INLINE float2 load_of_block2(const void* p, uint32_t) { return *static_cast<const float2*>(p); }
INLINE float4 load_of_block4(const void* p, uint32_t) { return *static_cast<const float4*>(p); }
#endif

// ---- pairs of 16-bit numbers in a word

INLINE __half2 as_half2(uint32_t v) { return *reinterpret_cast<__half2*>(&v); }
INLINE uint32_t as_word(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
template <bool BF16> INLINE uint32_t pack_pair(float low, float high) {
    uint32_t r;
    if constexpr (BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
INLINE float low_f16(uint32_t pair) { return __low2float(as_half2(pair)); }
INLINE float high_f16(uint32_t pair) { return __high2float(as_half2(pair)); }
INLINE float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
INLINE float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Byte `i` of a word, without and with sign.
// As the last byte of 2^23 it makes a float that is larger by as much: two instructions.
INLINE float byte_value(uint32_t v, int i) { return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440 | i)) - 8388608.0f; }
INLINE float signed_byte_value(uint32_t v, int i) {
    return __uint_as_float(__byte_perm(v ^ 0x80808080u, 0x4b000000u, 0x7440 | i)) - 8388736.0f;
}
