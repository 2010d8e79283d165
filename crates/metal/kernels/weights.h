// Weight types: those of blocks, which all backends share, and the plain ones, with 16 elements as a block.
//
// A plain type can also read single elements, at any place of a row.
#pragma once
#include "common.h"

#define BLOCK_FN inline
#define BLOCK_SRC device const uchar*
#define BLOCK_OUT thread float*
#define BLOCK_CODES thread uint*
#define BLOCK_TABLE constant

inline uint u16_at(device const uchar* p) {
    return *(device const ushort*)p;
}

inline float f16_value(uint bits) {
    return float(as_type<half>(ushort(bits)));
}

inline float f32_of_bits(uint bits) {
    return as_type<float>(bits);
}

#include "blocks.h"

struct F32 {
    enum : uint { ELEMENTS = 16, BYTES = 64, PLAIN = 1 };
    static inline float at(device const uchar* row, uint i) {
        return ((device const float*)row)[i];
    }
    static inline void decode16(device const uchar* block, uint, thread float* w) {
        device const float4* from = (device const float4*)block;
        for (uint i = 0; i < 4; i++) {
            float4 v = from[i];
            for (uint j = 0; j < 4; j++) w[4 * i + j] = v[j];
        }
    }
};

struct F16 {
    enum : uint { ELEMENTS = 16, BYTES = 32, PLAIN = 1 };
    static inline float at(device const uchar* row, uint i) {
        return float(((device const half*)row)[i]);
    }
    static inline void decode16(device const uchar* block, uint, thread float* w) {
        device const half4* from = (device const half4*)block;
        for (uint i = 0; i < 4; i++) {
            half4 v = from[i];
            for (uint j = 0; j < 4; j++) w[4 * i + j] = float(v[j]);
        }
    }
};

struct BF16 {
    enum : uint { ELEMENTS = 16, BYTES = 32, PLAIN = 1 };
    static inline float at(device const uchar* row, uint i) {
        return bf16_value(((device const ushort*)row)[i]);
    }
    static inline void decode16(device const uchar* block, uint, thread float* w) {
        device const ushort4* from = (device const ushort4*)block;
        for (uint i = 0; i < 4; i++) {
            ushort4 v = from[i];
            for (uint j = 0; j < 4; j++) w[4 * i + j] = bf16_value(v[j]);
        }
    }
};

// Sixteen elements of a row, by the number of the sixteen.
template <typename W> inline void decode16(device const uchar* row, uint chunk, thread float* w) {
    const uint parts = uint(W::ELEMENTS) / 16;
    W::decode16(row + chunk / parts * uint(W::BYTES), chunk % parts, w);
}
