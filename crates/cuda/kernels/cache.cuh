// The cache of keys and values: blocks of 32 positions. A block holds its keys, then its values; each of them head
// by head. A head of a plain type is `[32][dim]`; one of a quantised type is the codes `[32][dim]`, then the f16 scales
// `[32][dim / 32]`: the bytes of GGUF's blocks, in an order that keeps codes aligned.
#pragma once
#include "common.cuh"

constexpr uint32_t BLOCK_TOKENS = 32;

// In the order of graph::KvType::ALL.
enum KvType { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0 };

// Bytes of one position of a head.
__device__ inline uint32_t kv_bytes(uint32_t type, uint32_t dim) {
    switch (type) {
    case KV_F32: return 4 * dim;
    case KV_Q8_0: return dim / 32 * 34;
    case KV_Q4_0: return dim / 32 * 18;
    default: return 2 * dim;
    }
}

// Bytes of the codes of one position of a head.
__device__ inline uint32_t kv_code_bytes(uint32_t type, uint32_t dim) {
    return type == KV_Q8_0 ? dim : type == KV_Q4_0 ? dim / 2 : kv_bytes(type, dim);
}

// Element `d` at position `at` of one head of a block. A group of Q4_0 has elements 0..16 in its low half-bytes.
__device__ inline float kv_value(uint32_t type, const uint8_t* head, uint32_t dim, uint32_t at, uint32_t d) {
    const uint8_t* codes = head + at * kv_code_bytes(type, dim);
    switch (type) {
    case KV_F32: return reinterpret_cast<const float*>(codes)[d];
    case KV_F16: return f16_value(reinterpret_cast<const uint16_t*>(codes)[d]);
    case KV_BF16: return bf16_value(reinterpret_cast<const uint16_t*>(codes)[d]);
    }
    const uint8_t* scales = head + BLOCK_TOKENS * kv_code_bytes(type, dim);
    const float scale = f16_value(reinterpret_cast<const uint16_t*>(scales)[at * (dim / 32) + d / 32]);
    if (type == KV_Q8_0) return scale * float(int8_t(codes[d]));
    return scale * float((codes[d / 32 * 16 + d % 16] >> (d % 32 / 16 * 4) & 15) - 8);
}
