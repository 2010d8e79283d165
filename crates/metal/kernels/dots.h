// Products of sixteen weights with sixteen activations, for one row of activations.
//
// The general form decodes the weights. The types that most models are kept in have a form of their own: codes are
// multiplied as they lie in their bytes, so that a mask takes the place of shifts (activations carry the power of two
// that undoes it), and scales and zero points are applied to sums.
#pragma once
#include "weights.h"

inline float sum_of(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

// Sixteen activations.
struct Sixteen {
    float4 x[4];
    float sum;
};

template <typename W> struct Dot {
    static inline float of16(device const uchar* block, uint part, thread const Sixteen& s) {
        float w[16];
        W::decode16(block, part, w);
        float4 sum = float4(0.0f);
        for (uint i = 0; i < 4; i++) sum += s.x[i] * float4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
        return sum_of(sum);
    }
};

// Sum of activations times nibbles of sixteen bytes, the low or the high ones.
inline float nibble_products(device const uchar* packed, uint high, thread const Sixteen& s) {
    uint even = high != 0 ? 0x00f0 : 0x000f, odd = even << 8;
    float2 sum = float2(0.0f);
    for (uint i = 0; i < 4; i++) {
        uint a = u16_at(packed + 4 * i), b = u16_at(packed + 4 * i + 2);
        sum.x += s.x[i].x * float(a & even) + s.x[i].z * float(b & even);
        sum.y += s.x[i].y * float(a & odd) + s.x[i].w * float(b & odd);
    }
    float total = sum.x + sum.y * (1.0f / 256.0f);
    return high != 0 ? total * (1.0f / 16.0f) : total;
}

template <> struct Dot<Q4_0> {
    static inline float of16(device const uchar* block, uint part, thread const Sixteen& s) {
        return f16_at(block) * (nibble_products(block + 2, part, s) - 8.0f * s.sum);
    }
};

template <> struct Dot<Q8_0> {
    static inline float of16(device const uchar* block, uint part, thread const Sixteen& s) {
        device const uchar* codes = block + 2 + 16 * part;
        float2 sum = float2(0.0f);
        for (uint i = 0; i < 4; i++) {
            uint a = u16_at(codes + 4 * i), b = u16_at(codes + 4 * i + 2);
            sum.x += s.x[i].x * float(char(a & 255)) + s.x[i].z * float(char(b & 255));
            sum.y += s.x[i].y * float(char(a >> 8)) + s.x[i].w * float(char(b >> 8));
        }
        return f16_at(block) * (sum.x + sum.y);
    }
};

// The same where the bytes are aligned to sixteen.
inline float aligned_nibble_products(device const uchar* packed, uint high, thread const Sixteen& s) {
    uint4 words = *(device const uint4*)packed;
    uint mask = high != 0 ? 0xf0 : 0x0f;
    float4 sum = float4(0.0f);
    for (uint i = 0; i < 4; i++) {
        uint w = words[i];
        sum += s.x[i] * float4(w & mask, w & mask << 8, w & mask << 16, w & mask << 24);
    }
    float total = sum.x + (1.0f / 256.0f) * (sum.y + (1.0f / 256.0f) * (sum.z + (1.0f / 256.0f) * sum.w));
    return high != 0 ? total * (1.0f / 16.0f) : total;
}

// Blocks of 144 bytes: rows of them are aligned to sixteen bytes, as tensors are.
template <> struct Dot<Q4_K> {
    static inline float of16(device const uchar* block, uint part, thread const Sixteen& s) {
        uint g = part / 2;
        float scale = float(scale6(block + 4, g)), least = float(min6(block + 4, g));
        float products = aligned_nibble_products(block + 16 + g / 2 * 32 + part % 2 * 16, g % 2, s);
        return f16_at(block) * scale * products - f16_at(block + 2) * least * s.sum;
    }
};

template <> struct Dot<Q6_K> {
    static inline float of16(device const uchar* block, uint part, thread const Sixteen& s) {
        float low = nibble_products(block + part / 8 * 64 + part % 4 * 16, part % 8 / 4, s);
        device const uchar* packed = block + 128 + part / 8 * 32 + part % 2 * 16;
        uint shift = part % 8 / 2 * 2;
        float2 high = float2(0.0f);
        for (uint i = 0; i < 4; i++) {
            uint a = u16_at(packed + 4 * i) >> shift, b = u16_at(packed + 4 * i + 2) >> shift;
            high.x += s.x[i].x * float(a & 0x0003) + s.x[i].z * float(b & 0x0003);
            high.y += s.x[i].y * float(a & 0x0300) + s.x[i].w * float(b & 0x0300);
        }
        float codes = low + 16.0f * (high.x + high.y * (1.0f / 256.0f));
        return f16_at(block + 208) * float(char(block[192 + part])) * (codes - 32.0f * s.sum);
    }
};

// Product of sixteen elements of a row, by the number of the sixteen.
template <typename W> inline float dot16(device const uchar* row, uint chunk, thread const Sixteen& s) {
    const uint parts = uint(W::ELEMENTS) / 16;
    return Dot<W>::of16(row + chunk / parts * uint(W::BYTES), chunk % parts, s);
}
