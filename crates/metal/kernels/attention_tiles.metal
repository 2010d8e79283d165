// Attention in matrix form: 32 query rows of one sequence against blocks of 32 cached positions, with simdgroup
// matrices. K_DIM and V_DIM are multiples of 8, at most 128; K_TYPE, V_TYPE: types of cache.h.
//
// Each simdgroup keeps eight queries and their sums in registers; keys, then values, of a block pass through threadgroup
// memory in f32. Softmax runs along with the blocks: where a row's largest score grows, its sums shrink.
#include "args.h"
#include "cache.h"
#include "activation.h"

FUNCTION_CONSTANT(bool, causal, 2);
FUNCTION_CONSTANT(bool, has_window, 3);
FUNCTION_CONSTANT(bool, has_softcap, 4);
FUNCTION_CONSTANT(bool, has_sinks, 5);

enum : uint {
    SIMDGROUPS = 4,
    THREADS = 32 * SIMDGROUPS,
    // Queries of a simdgroup.
    ROWS = 8,
    LARGER_DIM = K_DIM > V_DIM ? K_DIM : V_DIM
};

// The largest of the four threads of a row, and their sum.
inline float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, ushort(1)));
    return max(x, simd_shuffle_xor(x, ushort(2)));
}

inline float row_sum(float x) {
    x += simd_shuffle_xor(x, ushort(1));
    return x + simd_shuffle_xor(x, ushort(2));
}

// Multiplies each row of the sums by its factor: `diagonal` holds the factors on an otherwise empty diagonal.
inline void scale_rows(thread simdgroup_float8x8* sums, threadgroup const float* diagonal) {
    simdgroup_float8x8 factors;
    simdgroup_load(factors, diagonal, 8);
    for (uint i = 0; i < V_DIM / 8; i++) {
        simdgroup_float8x8 scaled = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_multiply_accumulate(scaled, factors, sums[i], scaled);
        sums[i] = scaled;
    }
}

// Grid: [heads, tiles], THREADS threads. y [tokens, heads * V_DIM].
kernel void attention_tiles(constant AttentionArgs& args [[buffer(0)]],
                            device const float* q [[buffer(1)]],
                            device const uchar* cache_k [[buffer(2)]],
                            device const uchar* cache_v [[buffer(3)]],
                            device const TokenSpan* spans [[buffer(4)]],
                            device const uint* blocks [[buffer(5)]],
                            device const TokenTile* tiles [[buffer(6)]],
                            device const float* sinks [[buffer(7)]],
                            device float* y [[buffer(8)]],
                            uint2 place [[threadgroup_position_in_grid]],
                            uint tid [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]],
                            uint group [[simdgroup_index_in_threadgroup]]) {
    // A block of keys or values; at first the queries, at last the results.
    SHARED(float, stage, 32 * LARGER_DIM);
    SHARED(float, scores, SIMDGROUPS * ROWS * 32);
    SHARED(float, diagonals, SIMDGROUPS * 64);
    uint head = place.x, kv_head = head / (args.heads / args.kv_heads);
    uint first_token = tiles[place.y].first, count = tiles[place.y].count;
    uint table = spans[first_token].table, first_block = spans[first_token].first;
    uint position = spans[first_token].position;
    uint end = causal ? position + count : spans[first_token].end;
    uint held = first_block * uint(BLOCK_TOKENS);
    uint start = has_window && position + 1 > args.window ? max(position + 1 - args.window, held) : held;
    threadgroup float* own = scores + group * ROWS * 32;
    threadgroup float* diagonal = diagonals + group * 64;

    for (uint i = tid; i < 32 * K_DIM; i += THREADS) {
        ulong row = ulong(first_token + i / K_DIM) * args.heads + head;
        stage[i] = i / K_DIM < count ? q[row * K_DIM + i % K_DIM] * args.scale : 0.0f;
    }
    for (uint i = lane; i < 64; i += 32) diagonal[i] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 queries[K_DIM / 8];
    for (uint d = 0; d < K_DIM / 8; d++) simdgroup_load(queries[d], stage + group * ROWS * K_DIM + 8 * d, K_DIM);
    simdgroup_float8x8 sums[V_DIM / 8];
    for (uint i = 0; i < V_DIM / 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    // Four threads share a row of scores.
    uint row = lane / 4, column = lane % 4 * 8;
    uint own_position = position + group * ROWS + row;
    uint own_end = group * ROWS + row >= count ? 0 : causal ? own_position + 1 : end;
    uint own_start = has_window && own_position + 1 > args.window ? max(own_position + 1 - args.window, held) : held;
    float top = -INFINITY, total = 0.0f;

    for (uint block = start / BLOCK_TOKENS; block * BLOCK_TOKENS < end; block++) {
        ulong at = ulong(blocks[table + block - first_block]) * args.kv_heads + kv_head;
        device const uchar* keys = cache_k + at * K_TYPE::region(K_DIM);
        device const uchar* values = cache_v + at * V_TYPE::region(V_DIM);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < 32 * K_DIM / 4; i += THREADS) {
            uint p = i % 32, c = i / 32;
            float4 v = K_TYPE::load<Keys>(keys, K_DIM, p, c);
            for (uint j = 0; j < 4; j++) stage[p * K_DIM + 4 * c + j] = v[j];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 products[4];
        for (uint j = 0; j < 4; j++) products[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint d = 0; d < K_DIM / 8; d++) {
            for (uint j = 0; j < 4; j++) {
                simdgroup_float8x8 k;
                simdgroup_load(k, stage + 8 * j * K_DIM + 8 * d, K_DIM, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(products[j], queries[d], k, products[j]);
            }
        }
        for (uint j = 0; j < 4; j++) simdgroup_store(products[j], own + 8 * j, 32);
        simdgroup_barrier(mem_flags::mem_threadgroup);

        float weights[8];
        float largest = -INFINITY;
        for (uint i = 0; i < 8; i++) {
            uint p = block * BLOCK_TOKENS + column + i;
            float score = own[row * 32 + column + i];
            if (has_softcap) score = args.softcap * saturating_tanh(score / args.softcap);
            weights[i] = p >= own_start && p < own_end ? score : -INFINITY;
            largest = max(largest, weights[i]);
        }
        float new_top = max(top, row_max(largest));
        // A row may not have seen any position yet.
        float shrink = new_top == -INFINITY ? 1.0f : exp(top - new_top);
        float sum = 0.0f;
        for (uint i = 0; i < 8; i++) {
            float weight = weights[i] == -INFINITY ? 0.0f : exp(weights[i] - new_top);
            own[row * 32 + column + i] = weight;
            sum += weight;
        }
        total = total * shrink + row_sum(sum);
        top = new_top;
        if (lane % 4 == 0) diagonal[9 * row] = shrink;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (simd_min(shrink) < 1.0f) scale_rows(sums, diagonal);

        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < 32 * V_DIM / 4; i += THREADS) {
            uint p = i / (V_DIM / 4), c = i % (V_DIM / 4);
            // Slots that nobody sees may hold anything, and nothing times that is not always nothing.
            bool seen = block * BLOCK_TOKENS + p < end;
            float4 v = seen ? V_TYPE::load<Values>(values, V_DIM, p, c) : float4(0.0f);
            for (uint j = 0; j < 4; j++) stage[p * V_DIM + 4 * c + j] = v[j];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 4; k++) {
            simdgroup_float8x8 weight;
            simdgroup_load(weight, own + 8 * k, 32);
            for (uint i = 0; i < V_DIM / 8; i++) {
                simdgroup_float8x8 v;
                simdgroup_load(v, stage + 8 * k * V_DIM + 8 * i, V_DIM);
                simdgroup_multiply_accumulate(sums[i], weight, v, sums[i]);
            }
        }
    }

    // A sink takes part in the softmax and adds no value.
    float last_top = has_sinks ? max(top, sinks[head]) : top;
    float factor = top == -INFINITY ? 0.0f : exp(top - last_top);
    float all = total * factor + (has_sinks ? exp(sinks[head] - last_top) : 0.0f);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % 4 == 0) diagonal[9 * row] = all > 0.0f ? factor / all : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    scale_rows(sums, diagonal);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < V_DIM / 8; i++) {
        simdgroup_store(sums[i], stage + group * ROWS * V_DIM + 8 * i, V_DIM);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < count * V_DIM; i += THREADS) {
        ulong to = ulong(first_token + i / V_DIM) * args.heads + head;
        y[to * V_DIM + i % V_DIM] = stage[i];
    }
}
