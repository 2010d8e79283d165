// Attention in matrix form for heads too large for attention_tiles.metal: eight query rows of one sequence against runs of
// eight cached positions. K_DIM and V_DIM are multiples of 8, at most 576 and 512; K_TYPE, V_TYPE: types of cache.h.
//
// Simdgroups share out the columns of a head: each multiplies its columns of queries and keys, all add up the products
// and take the same softmax, then each multiplies its columns of values. What a simdgroup stages is its own, so that a
// run takes one barrier of the threadgroup.
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
    // Queries of a threadgroup, and positions of a run.
    ROWS = 8,
    // Positions of a thread in softmax: four threads share a row.
    COLUMNS = ROWS / 4,
    // Matrices of a simdgroup across a head, and their columns.
    K_SLICE = (K_DIM / 8 + SIMDGROUPS - 1) / SIMDGROUPS,
    V_SLICE = (V_DIM / 8 + SIMDGROUPS - 1) / SIMDGROUPS,
    K_WIDTH = 8 * K_SLICE,
    V_WIDTH = 8 * V_SLICE,
    WIDTH = K_WIDTH > V_WIDTH ? K_WIDTH : V_WIDTH
};

// Grid: [heads, tiles, runs of ROWS queries of a tile]. y [tokens, heads * V_DIM].
kernel void attention_wide(constant AttentionArgs& args [[buffer(0)]],
                           device const float* q [[buffer(1)]],
                           device const uchar* cache_k [[buffer(2)]],
                           device const uchar* cache_v [[buffer(3)]],
                           device const TokenSpan* spans [[buffer(4)]],
                           device const uint* blocks [[buffer(5)]],
                           device const TokenTile* tiles [[buffer(6)]],
                           device const float* sinks [[buffer(7)]],
                           device float* y [[buffer(8)]],
                           uint3 place [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint group [[simdgroup_index_in_threadgroup]]) {
    // A run of a simdgroup's columns of keys or values; at first of queries, at last of results.
    SHARED(float, stages, SIMDGROUPS * ROWS * WIDTH);
    // Products of each simdgroup's columns, of this run and of the one before, which slower simdgroups may still read.
    SHARED(float, products, 2 * SIMDGROUPS * 64);
    SHARED(float, all_weights, SIMDGROUPS * 64);
    SHARED(float, diagonals, SIMDGROUPS * 64);
    uint skipped = place.z * ROWS;
    if (skipped >= tiles[place.y].count) return;
    uint head = place.x, kv_head = head / (args.heads / args.kv_heads);
    uint first_token = tiles[place.y].first + skipped, count = min(tiles[place.y].count - skipped, uint(ROWS));
    uint table = spans[first_token].table, first_block = spans[first_token].first;
    uint position = spans[first_token].position;
    uint end = causal ? position + count : spans[first_token].end;
    uint held = first_block * uint(BLOCK_TOKENS);
    uint start = has_window && position + 1 > args.window ? max(position + 1 - args.window, held) : held;
    threadgroup float* stage = stages + group * ROWS * WIDTH;
    threadgroup float* own_weights = all_weights + group * 64;
    threadgroup float* diagonal = diagonals + group * 64;
    uint k_first = group * K_WIDTH, v_first = group * V_WIDTH;

    for (uint i = lane; i < 64; i += 32) diagonal[i] = 0.0f;
    for (uint i = lane; i < ROWS * K_WIDTH; i += 32) {
        uint row = i / K_WIDTH, column = k_first + i % K_WIDTH;
        ulong at = (ulong(first_token + row) * args.heads + head) * K_DIM + column;
        stage[i] = row < count && column < K_DIM ? q[at] * args.scale : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 queries[K_SLICE];
    for (uint d = 0; d < K_SLICE; d++) simdgroup_load(queries[d], stage + 8 * d, K_WIDTH);
    simdgroup_float8x8 sums[V_SLICE];
    for (uint i = 0; i < V_SLICE; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    // Four threads share a row of scores.
    uint row = lane / 4, column = lane % 4 * COLUMNS;
    uint own_position = position + row;
    uint own_end = row >= count ? 0 : causal ? own_position + 1 : end;
    uint own_start = has_window && own_position + 1 > args.window ? max(own_position + 1 - args.window, held) : held;
    float top = -INFINITY, total = 0.0f;
    threadgroup float* current = products;

    for (uint run = start / ROWS * ROWS; run < end; run += ROWS) {
        ulong at = ulong(blocks[table + run / BLOCK_TOKENS - first_block]) * args.kv_heads + kv_head;
        device const uchar* keys = cache_k + at * K_TYPE::region(K_DIM);
        device const uchar* values = cache_v + at * V_TYPE::region(V_DIM);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < ROWS * K_WIDTH / 4; i += 32) {
            uint p = i % ROWS, c = i / ROWS;
            bool there = k_first + 4 * c < K_DIM;
            float4 v = there ? K_TYPE::load<Keys>(keys, K_DIM, run % BLOCK_TOKENS + p, k_first / 4 + c) : float4(0.0f);
            for (uint j = 0; j < 4; j++) stage[p * K_WIDTH + 4 * c + j] = v[j];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint d = 0; d < K_SLICE; d++) {
            simdgroup_float8x8 k;
            simdgroup_load(k, stage + 8 * d, K_WIDTH, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(product, queries[d], k, product);
        }
        simdgroup_store(product, current + group * 64, 8);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        float weights[COLUMNS];
        float largest = -INFINITY;
        for (uint i = 0; i < COLUMNS; i++) {
            uint p = run + column + i;
            float score = 0.0f;
            for (uint g = 0; g < SIMDGROUPS; g++) score += current[g * 64 + row * ROWS + column + i];
            if (has_softcap) score = args.softcap * saturating_tanh(score / args.softcap);
            weights[i] = p >= own_start && p < own_end ? score : -INFINITY;
            largest = max(largest, weights[i]);
        }
        current = current == products ? products + SIMDGROUPS * 64 : products;
        float new_top = max(top, row_max(largest));
        // A row may not have seen any position yet.
        float shrink = new_top == -INFINITY ? 1.0f : exp(top - new_top);
        float sum = 0.0f;
        for (uint i = 0; i < COLUMNS; i++) {
            float weight = weights[i] == -INFINITY ? 0.0f : exp(weights[i] - new_top);
            own_weights[row * ROWS + column + i] = weight;
            sum += weight;
        }
        total = total * shrink + row_sum(sum);
        top = new_top;
        if (lane % 4 == 0) diagonal[9 * row] = shrink;
        for (uint i = lane; i < ROWS * V_WIDTH / 4; i += 32) {
            uint p = i / (V_WIDTH / 4), c = i % (V_WIDTH / 4);
            // Slots that nobody sees may hold anything, and nothing times that is not always nothing.
            bool there = run + p < end && v_first + 4 * c < V_DIM;
            float4 v = there ? V_TYPE::load<Values>(values, V_DIM, run % BLOCK_TOKENS + p, v_first / 4 + c) : float4(0.0f);
            for (uint j = 0; j < 4; j++) stage[p * V_WIDTH + 4 * c + j] = v[j];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (simd_min(shrink) < 1.0f) scale_rows<V_SLICE>(sums, diagonal);
        simdgroup_float8x8 weight;
        simdgroup_load(weight, own_weights, ROWS);
        for (uint i = 0; i < V_SLICE; i++) {
            simdgroup_float8x8 v;
            simdgroup_load(v, stage + 8 * i, V_WIDTH);
            simdgroup_multiply_accumulate(sums[i], weight, v, sums[i]);
        }
    }

    // A sink takes part in the softmax and adds no value.
    float last_top = has_sinks ? max(top, sinks[head]) : top;
    float factor = top == -INFINITY ? 0.0f : exp(top - last_top);
    float all = total * factor + (has_sinks ? exp(sinks[head] - last_top) : 0.0f);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % 4 == 0) diagonal[9 * row] = all > 0.0f ? factor / all : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    scale_rows<V_SLICE>(sums, diagonal);
    for (uint i = 0; i < V_SLICE; i++) simdgroup_store(sums[i], stage + 8 * i, V_WIDTH);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < ROWS * V_WIDTH; i += 32) {
        uint token = i / V_WIDTH, to = v_first + i % V_WIDTH;
        if (token < count && to < V_DIM) y[(ulong(first_token + token) * args.heads + head) * V_DIM + to] = stage[i];
    }
}
