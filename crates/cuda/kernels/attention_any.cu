// Attention of any shape over caches of any type: a block for each head of each token, its threads a position each for
// scores, an element each for values. Right for everything, slow for long caches.
#include "cache.cuh"

// Positions that a block takes at once.
constexpr uint32_t CHUNK = 128;

KERNEL(128, attention_any, AttentionAnyArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    if (row >= *a.rows) return;
    DYNAMIC_SHARED(float, q);
    float* sum = q + a.k_dim;
    float* weights = sum + a.v_dim;
    const uint32_t sequence = a.sequences[row], position = uint32_t(a.positions[row]);
    const uint32_t kv_head = head / (a.heads / a.kv_heads);
    const uint32_t* blocks = a.blocks + uint64_t(sequence) * a.max_blocks;
    const uint32_t first_block = a.first_blocks[sequence];
    const uint32_t k_bytes = BLOCK_TOKENS * kv_bytes(a.k_type, a.k_dim);
    const uint32_t v_bytes = BLOCK_TOKENS * kv_bytes(a.v_type, a.v_dim);
    const uint64_t k_at = uint64_t(kv_head) * k_bytes, v_at = uint64_t(a.kv_heads) * k_bytes + kv_head * v_bytes;

    const uint32_t end = a.causal ? position + 1 : a.lengths[sequence];
    uint32_t start = a.window != 0 && position + 1 > a.window ? position + 1 - a.window : 0;
    // Blocks before the first that is held have left the window.
    if (start < first_block * BLOCK_TOKENS) start = first_block * BLOCK_TOKENS;

    const float* from = a.q + (uint64_t(row) * a.heads + head) * a.k_dim;
    for (uint32_t d = threadIdx.x; d < a.k_dim; d += blockDim.x) q[d] = from[d];
    for (uint32_t d = threadIdx.x; d < a.v_dim; d += blockDim.x) sum[d] = 0.0f;
    __syncthreads();

    // A sink takes part in the softmax like a position without a value.
    float largest = a.sinks == nullptr ? -INFINITY : a.sinks[head];
    float total = a.sinks == nullptr ? 0.0f : 1.0f;
    for (uint32_t chunk = start; chunk < end; chunk += CHUNK) {
        const uint32_t here = end - chunk < CHUNK ? end - chunk : CHUNK, mine = chunk + threadIdx.x;
        float score = -INFINITY;
        if (threadIdx.x < here) {
            const uint8_t* keys = a.cache + uint64_t(blocks[mine / BLOCK_TOKENS - first_block]) * a.block_bytes + k_at;
            float dot = 0.0f;
            for (uint32_t d = 0; d < a.k_dim; d++) {
                dot += q[d] * kv_value(a.k_type, keys, a.k_dim, mine % BLOCK_TOKENS, d);
            }
            score = dot * a.scale;
            if (a.softcap != 0.0f) score = a.softcap * tanhf(score / a.softcap);
        }
        const float most = fmaxf(largest, over_block<Max>(score));
        const float weight = threadIdx.x < here ? expf(score - most) : 0.0f;
        const float fade = largest == -INFINITY ? 0.0f : expf(largest - most);
        total = total * fade + over_block<Sum>(weight);
        largest = most;
        weights[threadIdx.x] = weight;
        __syncthreads();
        for (uint32_t d = threadIdx.x; d < a.v_dim; d += blockDim.x) {
            float value = sum[d] * fade;
            for (uint32_t p = 0; p < here; p++) {
                const uint32_t at = chunk + p;
                const uint8_t* values =
                    a.cache + uint64_t(blocks[at / BLOCK_TOKENS - first_block]) * a.block_bytes + v_at;
                value += weights[p] * kv_value(a.v_type, values, a.v_dim, at % BLOCK_TOKENS, d);
            }
            sum[d] = value;
        }
        __syncthreads();
    }
    float* out = a.out + (uint64_t(row) * a.heads + head) * a.v_dim;
    for (uint32_t d = threadIdx.x; d < a.v_dim; d += blockDim.x) out[d] = total > 0.0f ? sum[d] / total : 0.0f;
}
