// How keys and values lie in the cache, and the types they are kept in.
//
// A cache is [blocks, heads] regions of 32 positions. Keys lie by chunks of four elements, so that the threads of a
// simdgroup, one a position, read side by side: element e of position p is at (e / 4 * 32 + p) * 4 + e % 4. Values
// lie by position: p * dim + e. Quantised types keep one f16 scale for 32 elements after the codes of the region, in
// the same order.
#pragma once
#include "common.h"

enum : uint { BLOCK_TOKENS = 32 };

struct Keys {
    // First element of chunk `c` of position `p`.
    static inline uint element(uint, uint p, uint c) {
        return (c * BLOCK_TOKENS + p) * 4;
    }
    // Scale of elements 32 g .. 32 g + 32 of position `p`.
    static inline uint scale(uint, uint p, uint g) {
        return g * BLOCK_TOKENS + p;
    }
};

struct Values {
    static inline uint element(uint dim, uint p, uint c) {
        return p * dim + 4 * c;
    }
    static inline uint scale(uint dim, uint p, uint g) {
        return p * (dim / 32) + g;
    }
};

// Each type has
// - `region(dim)`: bytes of 32 positions;
// - `load<L>(region, dim, p, c)`: chunk `c` of position `p`;
// - `store<L>(region, dim, p, head, lane, lanes)`: a whole head by `lanes` threads.

#define PLAIN_STORE                                                                                                   \
    template <typename L>                                                                                             \
    static inline void store(device uchar* region, uint dim, uint p, threadgroup const float* head, uint lane,        \
                             uint lanes) {                                                                            \
        for (uint c = lane; c < dim / 4; c += lanes) {                                                                \
            float4 v = float4(head[4 * c], head[4 * c + 1], head[4 * c + 2], head[4 * c + 3]);                        \
            write(region, L::element(dim, p, c), v);                                                                  \
        }                                                                                                             \
    }

struct KvF32 {
    static inline uint region(uint dim) {
        return 4 * BLOCK_TOKENS * dim;
    }
    template <typename L> static inline float4 load(device const uchar* region, uint dim, uint p, uint c) {
        return ((device const float4*)region)[L::element(dim, p, c) / 4];
    }
    static inline void write(device uchar* region, uint element, float4 v) {
        ((device float4*)region)[element / 4] = v;
    }
    PLAIN_STORE
};

struct KvF16 {
    static inline uint region(uint dim) {
        return 2 * BLOCK_TOKENS * dim;
    }
    template <typename L> static inline float4 load(device const uchar* region, uint dim, uint p, uint c) {
        return float4(((device const half4*)region)[L::element(dim, p, c) / 4]);
    }
    static inline void write(device uchar* region, uint element, float4 v) {
        ((device half4*)region)[element / 4] = half4(v);
    }
    PLAIN_STORE
};

struct KvBF16 {
    static inline uint region(uint dim) {
        return 2 * BLOCK_TOKENS * dim;
    }
    template <typename L> static inline float4 load(device const uchar* region, uint dim, uint p, uint c) {
        ushort4 v = ((device const ushort4*)region)[L::element(dim, p, c) / 4];
        return float4(bf16_value(v.x), bf16_value(v.y), bf16_value(v.z), bf16_value(v.w));
    }
    static inline void write(device uchar* region, uint element, float4 v) {
        ((device ushort4*)region)[element / 4] =
            ushort4(bf16_bits(v.x), bf16_bits(v.y), bf16_bits(v.z), bf16_bits(v.w));
    }
    PLAIN_STORE
};

// The value of largest magnitude of 32, with its sign.
inline float extreme32(threadgroup const float* x) {
    float best = 0.0f;
    for (uint i = 0; i < 32; i++) best = fabs(x[i]) > fabs(best) ? x[i] : best;
    return best;
}

inline float inverse_scale(float d) {
    return d == 0.0f ? 0.0f : 1.0f / d;
}

struct KvQ8_0 {
    static inline uint region(uint dim) {
        return (BLOCK_TOKENS + 2) * dim;
    }
    template <typename L> static inline float4 load(device const uchar* region, uint dim, uint p, uint c) {
        device const half* scales = (device const half*)(region + BLOCK_TOKENS * dim);
        float d = float(scales[L::scale(dim, p, c / 8)]);
        char4 q = ((device const char4*)region)[L::element(dim, p, c) / 4];
        return float4(q) * d;
    }
    template <typename L>
    static inline void store(device uchar* region, uint dim, uint p, threadgroup const float* head, uint lane,
                             uint lanes) {
        device half* scales = (device half*)(region + BLOCK_TOKENS * dim);
        for (uint g = lane; g < dim / 32; g += lanes) {
            threadgroup const float* x = head + 32 * g;
            float d = fabs(extreme32(x)) / 127.0f;
            float inverse = inverse_scale(d);
            scales[L::scale(dim, p, g)] = half(d);
            for (uint c = 0; c < 8; c++) {
                char4 q = char4(char(round(x[4 * c] * inverse)), char(round(x[4 * c + 1] * inverse)),
                                char(round(x[4 * c + 2] * inverse)), char(round(x[4 * c + 3] * inverse)));
                ((device char4*)region)[L::element(dim, p, 8 * g + c) / 4] = q;
            }
        }
    }
};

struct KvQ4_0 {
    static inline uint region(uint dim) {
        return (BLOCK_TOKENS / 2 + 2) * dim;
    }
    // Four codes in two bytes, the first lowest.
    template <typename L> static inline float4 load(device const uchar* region, uint dim, uint p, uint c) {
        device const half* scales = (device const half*)(region + BLOCK_TOKENS / 2 * dim);
        float d = float(scales[L::scale(dim, p, c / 8)]);
        uint q = ((device const ushort*)region)[L::element(dim, p, c) / 4];
        return float4(float(int(q & 15) - 8), float(int(q >> 4 & 15) - 8), float(int(q >> 8 & 15) - 8),
                      float(int(q >> 12) - 8)) *
               d;
    }
    template <typename L>
    static inline void store(device uchar* region, uint dim, uint p, threadgroup const float* head, uint lane,
                             uint lanes) {
        device half* scales = (device half*)(region + BLOCK_TOKENS / 2 * dim);
        for (uint g = lane; g < dim / 32; g += lanes) {
            threadgroup const float* x = head + 32 * g;
            float d = extreme32(x) / -8.0f;
            float inverse = inverse_scale(d);
            scales[L::scale(dim, p, g)] = half(d);
            for (uint c = 0; c < 8; c++) {
                uint q = 0;
                for (uint i = 0; i < 4; i++) q |= min(uint(x[4 * c + i] * inverse + 8.5f), uint(15)) << (4 * i);
                ((device ushort*)region)[L::element(dim, p, 8 * g + c) / 4] = ushort(q);
            }
        }
    }
};
