// Hopper's tensor products: a warpgroup (4 warps) multiplies 64 rows in registers with tokens in shared memory.
#pragma once
#include "ptx.cuh"

// Registers written before are seen by the products that follow.
INLINE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> INLINE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// Sums are touched by ordinary instructions only between two of these: keeps the compiler from moving such across products.
template <int N> INLINE void pin(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Describes rows of 128 bytes, swizzled in groups of 8 rows, at `address` (plus 32 bytes for each 16 columns).
INLINE uint64_t rows128(uint32_t address) {
    constexpr uint64_t SWIZZLE_128 = 1ull << 62, GROUP_STRIDE = 1024 >> 4;
    return SWIZZLE_128 | GROUP_STRIDE << 32 | 1ull << 16 | (address & 0x3ffff) >> 4;
}

// d[64 x N] += a[64 x 16] b[16 x N]; d of lane (g, t) is [group of 8 tokens][row g, g + 8][2t, 2t + 1].
template <int N, bool BF16> struct Product;
template <bool BF16> struct Product<16, BF16> {
    INLINE static void add(float* d, const uint32_t (&a)[4], uint64_t b) {
#define PRODUCT(TYPE) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7" \
            "}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
        if constexpr (BF16) PRODUCT("bf16");
        else PRODUCT("f16");
#undef PRODUCT
    }
};
template <bool BF16> struct Product<32, BF16> {
    INLINE static void add(float* d, const uint32_t (&a)[4], uint64_t b) {
#define PRODUCT(TYPE) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, " \
            "%8, %9, %10, %11, %12, %13, %14, %15" \
            "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
        if constexpr (BF16) PRODUCT("bf16");
        else PRODUCT("f16");
#undef PRODUCT
    }
};
template <bool BF16> struct Product<64, BF16> {
    INLINE static void add(float* d, const uint32_t (&a)[4], uint64_t b) {
#define PRODUCT(TYPE) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, " \
            "%8, %9, %10, %11, %12, %13, %14, %15, " \
            "%16, %17, %18, %19, %20, %21, %22, %23, " \
            "%24, %25, %26, %27, %28, %29, %30, %31" \
            "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
        if constexpr (BF16) PRODUCT("bf16");
        else PRODUCT("f16");
#undef PRODUCT
    }
};
template <bool BF16> struct Product<128, BF16> {
    INLINE static void add(float* d, const uint32_t (&a)[4], uint64_t b) {
#define PRODUCT(TYPE) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, " \
            "%8, %9, %10, %11, %12, %13, %14, %15, " \
            "%16, %17, %18, %19, %20, %21, %22, %23, " \
            "%24, %25, %26, %27, %28, %29, %30, %31, " \
            "%32, %33, %34, %35, %36, %37, %38, %39, " \
            "%40, %41, %42, %43, %44, %45, %46, %47, " \
            "%48, %49, %50, %51, %52, %53, %54, %55, " \
            "%56, %57, %58, %59, %60, %61, %62, %63" \
            "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
              "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
              "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
        if constexpr (BF16) PRODUCT("bf16");
        else PRODUCT("f16");
#undef PRODUCT
    }
};
