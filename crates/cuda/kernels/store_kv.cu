// Writes the keys and values of a step's tokens to their cache: a warp for each head of each token.
#include "cache.cuh"

// 1 / d; 0 where that is infinite.
__device__ inline float inverse(float d) {
    const float inverse = 1.0f / d;
    return isfinite(inverse) ? inverse : 0.0f;
}

__device__ inline uint16_t bf16_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// One group of 32 elements, one in each lane, as GGUF's Q8_0 and Q4_0 are written.
__device__ inline void store_group(uint32_t type, float value, uint8_t* codes, uint16_t* scale) {
    const uint32_t lane = threadIdx.x;
    float extreme = value;
    uint32_t at = lane;
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, extreme, step);
        const uint32_t other_at = __shfl_xor_sync(0xffffffffu, at, step);
        // Of equal magnitudes the first counts, with its sign.
        const float mine = fabsf(extreme), theirs = fabsf(other);
        if (theirs > mine || (theirs == mine && other_at < at)) extreme = other, at = other_at;
    }
    if (type == KV_Q8_0) {
        const float d = fabsf(extreme) / 127.0f;
        codes[lane] = uint8_t(int8_t(roundf(value * inverse(d))));
        if (lane == 0) *scale = uint16_t(f16_bits(d));
        return;
    }
    const float d = extreme / -8.0f;
    // Product and sum are rounded apart, as on the host.
    const float code = fminf(__fadd_rn(__fmul_rn(value, inverse(d)), 8.5f), 15.0f);
    const uint32_t low = uint32_t(code), high = __shfl_xor_sync(0xffffffffu, low, 16);
    if (lane < 16) codes[lane] = uint8_t(low | high << 4);
    if (lane == 0) *scale = uint16_t(f16_bits(d));
}

__device__ inline void store_head(uint32_t type, const float* x, uint8_t* head, uint32_t dim, uint32_t at) {
    uint8_t* codes = head + at * kv_code_bytes(type, dim);
    uint16_t* scales = reinterpret_cast<uint16_t*>(head + BLOCK_TOKENS * kv_code_bytes(type, dim));
    for (uint32_t d = threadIdx.x; d < dim; d += 32) {
        switch (type) {
        case KV_F32: reinterpret_cast<float*>(codes)[d] = x[d]; break;
        case KV_F16: reinterpret_cast<uint16_t*>(codes)[d] = uint16_t(f16_bits(x[d])); break;
        case KV_BF16: reinterpret_cast<uint16_t*>(codes)[d] = bf16_bits(x[d]); break;
        case KV_Q8_0: store_group(type, x[d], codes + d / 32 * 32, scales + at * (dim / 32) + d / 32); break;
        default: store_group(type, x[d], codes + d / 32 * 16, scales + at * (dim / 32) + d / 32); break;
        }
    }
}

KERNEL(32, store_kv, StoreKvArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    if (row >= *a.rows) return;
    const uint32_t slot = a.slots[row], at = slot % BLOCK_TOKENS;
    uint8_t* block = a.cache + uint64_t(slot / BLOCK_TOKENS) * a.block_bytes;
    const uint32_t k_bytes = BLOCK_TOKENS * kv_bytes(a.k_type, a.k_dim);
    const uint32_t v_bytes = BLOCK_TOKENS * kv_bytes(a.v_type, a.v_dim);
    const uint64_t from = uint64_t(row) * a.kv_heads + head;
    store_head(a.k_type, a.k + from * a.k_dim, block + head * k_bytes, a.k_dim, at);
    store_head(a.v_type, a.v + from * a.v_dim, block + a.kv_heads * k_bytes + head * v_bytes, a.v_dim, at);
}
