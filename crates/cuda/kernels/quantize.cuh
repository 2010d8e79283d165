// Eight columns of a row at once, and their int8 codes.
#pragma once
#include "ptx.cuh"

struct Float8 {
    float v[8];
};
INLINE Float8 load8(const float* p, uint32_t chunk) {
    const float4 a = __ldcg(reinterpret_cast<const float4*>(p) + 2 * chunk);
    const float4 b = __ldcg(reinterpret_cast<const float4*>(p) + 2 * chunk + 1);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
INLINE void store8(float* p, uint32_t chunk, const Float8& x) {
    reinterpret_cast<float4*>(p)[2 * chunk] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    reinterpret_cast<float4*>(p)[2 * chunk + 1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}
INLINE void add8(Float8& x, const Float8& y) {
#pragma unroll
    for (int i = 0; i < 8; i++) x.v[i] += y.v[i];
}

INLINE float largest(const Float8& x) {
    float top = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) top = fmaxf(top, fabsf(x.v[e]));
    return top;
}
// Where a column lies among the bytes of the two quartets of its 8.
INLINE uint32_t quartet_place(uint32_t c) { return (c & 2) * 2 + (c & 1) * 2 + (c >> 2 & 1); }

// The scale of int8 columns whose largest value is `top`, and what they are multiplied by.
INLINE float scale_of(float top) { return top * (1.0f / 127.0f); }
INLINE float inverse_of(float top) { return top > 0 ? __fdividef(127.0f, top) : 0.0f; }
// 8 columns in int8, of some whose largest value is `top`.
struct Quantized8 {
    float scale;
    uint2 quartets;
    int sum;
    INLINE Quantized8(const Float8& x, float top) : scale(scale_of(top)), sum(0) {
        const float inverse = inverse_of(top);
        int q[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            q[e] = __float2int_rn(x.v[e] * inverse);
            sum += q[e];
        }
        quartets.x = (q[0] & 255) | (q[4] & 255) << 8 | (q[1] & 255) << 16 | q[5] << 24;
        quartets.y = (q[2] & 255) | (q[6] & 255) << 8 | (q[3] & 255) << 16 | q[7] << 24;
    }
};
