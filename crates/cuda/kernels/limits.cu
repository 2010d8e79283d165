// What a device can do at most.
#include "common.cuh"

struct alignas(16) Line {
    uint64_t words[2];
};

// Reads everything once.
KERNEL(512, read_limit, ReadLimitArgs) {
    const Line* lines = reinterpret_cast<const Line*>(a.data);
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    uint64_t sum = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.bytes / sizeof(Line); i += 4 * step) {
        Line four[4] = {};
        for (uint32_t j = 0; j < 4; j++) {
            if (i + j * step < a.bytes / sizeof(Line)) four[j] = lines[i + j * step];
        }
        for (uint32_t j = 0; j < 4; j++) sum ^= four[j].words[0] ^ four[j].words[1];
    }
    // Never true, but the compiler cannot know.
    if (sum == 0x9e3779b97f4a7c15u) *a.out = sum;
}

#ifndef WOOTZ_EMULATE
// Products of 16-bit matrices of 16 x 16 x 8, on eight independent sums, `rounds` times.
KERNEL(256, product_limit, ProductLimitArgs) {
    float sums[8][4] = {};
    const uint32_t x[4] = {threadIdx.x, threadIdx.x + 1, threadIdx.x + 2, threadIdx.x + 3}, y[2] = {x[1], x[2]};
    for (uint32_t round = 0; round < a.rounds; round++) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                         "{%0,%1,%2,%3};"
                         : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        }
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < 8; i++) sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    if (sum == 0.123456f) *a.out = 1;
}
#endif
