// Attention in matrix form: 32 query rows of one sequence against runs of cached positions, with simdgroup matrices.
// K_DIM and V_DIM are multiples of 8, at most 256; K_TYPE, V_TYPE: types of cache.h.
//
// Each simdgroup keeps eight queries and their sums in registers; keys, then values, of a run pass through threadgroup
// memory in f32. Softmax runs along with the blocks: where a row's largest score grows, its sums shrink.
#include "args.h"
#include "cache.h"
#include "activation.h"
#include "softmax.h"

FUNCTION_CONSTANT(bool, causal, 2);
FUNCTION_CONSTANT(bool, has_window, 3);
FUNCTION_CONSTANT(bool, has_softcap, 4);
FUNCTION_CONSTANT(bool, has_sinks, 5);

enum : uint {
    SIMDGROUPS = 4,
    THREADS = 32 * SIMDGROUPS,
    // Queries of a simdgroup.
    ROWS = 8,
    LARGER_DIM = K_DIM > V_DIM ? K_DIM : V_DIM,
    // Positions of a run: a block, or half of one where heads are large.
    POSITIONS = LARGER_DIM <= 128 ? 32 : 16,
    // Positions of a thread in softmax: four threads share a row.
    COLUMNS = POSITIONS / 4
};

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
    // A run of keys or values; at first the queries of a simdgroup, at last its results.
    SHARED(float, stage, POSITIONS * LARGER_DIM);
    SHARED(float, scores, SIMDGROUPS * ROWS * POSITIONS);
    SHARED(float, diagonals, SIMDGROUPS * 64);
    uint head = place.x, kv_head = head / (args.heads / args.kv_heads);
    uint first_token = tiles[place.y].first, count = tiles[place.y].count;
    uint table = spans[first_token].table, first_block = spans[first_token].first;
    uint position = spans[first_token].position;
    uint end = causal ? position + count : spans[first_token].end;
    uint held = first_block * uint(BLOCK_TOKENS);
    uint start = has_window && position + 1 > args.window ? max(position + 1 - args.window, held) : held;
    threadgroup float* own = scores + group * ROWS * POSITIONS;
    threadgroup float* diagonal = diagonals + group * 64;

    for (uint i = lane; i < 64; i += 32) diagonal[i] = 0.0f;
    simdgroup_float8x8 queries[K_DIM / 8];
    for (uint g = 0; g < SIMDGROUPS; g++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < ROWS * K_DIM; i += THREADS) {
            uint token = g * ROWS + i / K_DIM;
            ulong at = (ulong(first_token + token) * args.heads + head) * K_DIM + i % K_DIM;
            stage[i] = token < count ? q[at] * args.scale : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == g) {
            for (uint d = 0; d < K_DIM / 8; d++) simdgroup_load(queries[d], stage + 8 * d, K_DIM);
        }
    }
    simdgroup_float8x8 sums[V_DIM / 8];
    for (uint i = 0; i < V_DIM / 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    // Four threads share a row of scores.
    uint row = lane / 4, column = lane % 4 * COLUMNS;
    uint own_position = position + group * ROWS + row;
    uint own_end = group * ROWS + row >= count ? 0 : causal ? own_position + 1 : end;
    uint own_start = has_window && own_position + 1 > args.window ? max(own_position + 1 - args.window, held) : held;
    float top = -INFINITY, total = 0.0f;

    for (uint run = start / POSITIONS * POSITIONS; run < end; run += POSITIONS) {
        ulong at = ulong(blocks[table + run / BLOCK_TOKENS - first_block]) * args.kv_heads + kv_head;
        device const uchar* keys = cache_k + at * K_TYPE::region(K_DIM);
        device const uchar* values = cache_v + at * V_TYPE::region(V_DIM);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < POSITIONS * K_DIM / 4; i += THREADS) {
            uint p = i % POSITIONS, c = i / POSITIONS;
            float4 v = K_TYPE::load<Keys>(keys, K_DIM, run % BLOCK_TOKENS + p, c);
            for (uint j = 0; j < 4; j++) stage[p * K_DIM + 4 * c + j] = v[j];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 products[POSITIONS / 8];
        for (uint j = 0; j < POSITIONS / 8; j++) products[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint d = 0; d < K_DIM / 8; d++) {
            for (uint j = 0; j < POSITIONS / 8; j++) {
                simdgroup_float8x8 k;
                simdgroup_load(k, stage + 8 * j * K_DIM + 8 * d, K_DIM, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(products[j], queries[d], k, products[j]);
            }
        }
        for (uint j = 0; j < POSITIONS / 8; j++) simdgroup_store(products[j], own + 8 * j, POSITIONS);
        simdgroup_barrier(mem_flags::mem_threadgroup);

        float weights[COLUMNS];
        float largest = -INFINITY;
        for (uint i = 0; i < COLUMNS; i++) {
            uint p = run + column + i;
            float score = own[row * POSITIONS + column + i];
            if (has_softcap) score = args.softcap * saturating_tanh(score / args.softcap);
            weights[i] = p >= own_start && p < own_end ? score : -INFINITY;
            largest = max(largest, weights[i]);
        }
        float new_top = max(top, row_max(largest));
        // A row may not have seen any position yet.
        float shrink = new_top == -INFINITY ? 1.0f : exp(top - new_top);
        float sum = 0.0f;
        for (uint i = 0; i < COLUMNS; i++) {
            float weight = weights[i] == -INFINITY ? 0.0f : exp(weights[i] - new_top);
            own[row * POSITIONS + column + i] = weight;
            sum += weight;
        }
        total = total * shrink + row_sum(sum);
        top = new_top;
        if (lane % 4 == 0) diagonal[9 * row] = shrink;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (simd_min(shrink) < 1.0f) scale_rows<V_DIM / 8>(sums, diagonal);

        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < POSITIONS * V_DIM / 4; i += THREADS) {
            uint p = i / (V_DIM / 4), c = i % (V_DIM / 4);
            // Slots that nobody sees may hold anything, and nothing times that is not always nothing.
            bool seen = run + p < end;
            float4 v = seen ? V_TYPE::load<Values>(values, V_DIM, run % BLOCK_TOKENS + p, c) : float4(0.0f);
            for (uint j = 0; j < 4; j++) stage[p * V_DIM + 4 * c + j] = v[j];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < POSITIONS / 8; k++) {
            simdgroup_float8x8 weight;
            simdgroup_load(weight, own + 8 * k, POSITIONS);
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
    scale_rows<V_DIM / 8>(sums, diagonal);
    for (uint g = 0; g < SIMDGROUPS; g++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == g) {
            for (uint i = 0; i < V_DIM / 8; i++) simdgroup_store(sums[i], stage + 8 * i, V_DIM);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < ROWS * V_DIM; i += THREADS) {
            uint token = g * ROWS + i / V_DIM;
            ulong to = (ulong(first_token + token) * args.heads + head) * V_DIM + i % V_DIM;
            if (token < count) y[to] = stage[i];
        }
    }
}
