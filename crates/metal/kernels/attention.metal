// Attention in vector form: every query row by itself, over the paged cache. K_DIM, V_DIM: elements of a head;
// K_TYPE, V_TYPE: types of cache.h.
//
// Each thread of a simdgroup takes one cached position for the scores, so that no sum crosses threads, then four
// value elements for the weighted sum. No simdgroup matrices, reductions in float: right on every GPU family.
#include "args.h"
#include "cache.h"
#include "activation.h"

FUNCTION_CONSTANT(bool, causal, 2);
FUNCTION_CONSTANT(bool, has_window, 3);
FUNCTION_CONSTANT(bool, has_softcap, 4);
FUNCTION_CONSTANT(bool, has_sinks, 5);
// Whether the positions are shared out over several threadgroups, whose results attention_join joins.
FUNCTION_CONSTANT(bool, is_split, 6);

enum : uint {
    SIMDGROUPS = 4,
    // Value chunks of a thread, for the narrowest simdgroup.
    CHUNKS = (V_DIM / 4 + 31) / 32,
    // A part of a split: the weighted sum, the largest score, the sum of weights.
    PART = V_DIM + 2
};

// Grid: [heads, tokens, splits]. y [tokens, heads * V_DIM]; parts [tokens, heads, splits, PART].
kernel void attention(constant AttentionArgs& args [[buffer(0)]],
                      device const float* q [[buffer(1)]],
                      device const uchar* cache_k [[buffer(2)]],
                      device const uchar* cache_v [[buffer(3)]],
                      device const TokenSpan* spans [[buffer(4)]],
                      device const uint* blocks [[buffer(5)]],
                      device const float* sinks [[buffer(6)]],
                      device float* y [[buffer(7)]],
                      device float* parts [[buffer(8)]],
                      uint3 place [[threadgroup_position_in_grid]],
                      uint tid [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint group [[simdgroup_index_in_threadgroup]]) {
    SHARED(float, query, K_DIM);
    SHARED(float, weights, SIMDGROUPS * 64);
    SHARED(float, sums, SIMDGROUPS * V_DIM);
    SHARED(float, tops, SIMDGROUPS);
    SHARED(float, totals, SIMDGROUPS);
    uint head = place.x, token = place.y, split = place.z;
    uint kv_head = head / (args.heads / args.kv_heads);
    uint position = spans[token].position;
    uint end = causal ? position + 1 : spans[token].end;
    uint start = has_window && position + 1 > args.window ? position + 1 - args.window : 0;
    uint first_block = spans[token].first, table = spans[token].table;
    start = max(start, first_block * uint(BLOCK_TOKENS));

    ulong row = ulong(token) * args.heads + head;
    for (uint i = tid; i < K_DIM; i += SIMDGROUPS * simd_width) query[i] = q[row * K_DIM + i] * args.scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float top = -INFINITY, total = 0.0f;
    float4 sum[CHUNKS];
    for (uint i = 0; i < CHUNKS; i++) sum[i] = float4(0.0f);
    threadgroup float* own = weights + group * 64;
    uint tiles = (end + simd_width - 1) / simd_width;
    for (uint tile = start / simd_width + split * SIMDGROUPS + group; tile < tiles; tile += args.splits * SIMDGROUPS) {
        uint p = tile * simd_width + lane;
        float score = -INFINITY;
        if (p >= start && p < end) {
            uint block = blocks[table + p / BLOCK_TOKENS - first_block];
            device const uchar* region = cache_k + (ulong(block) * args.kv_heads + kv_head) * K_TYPE::region(K_DIM);
            float4 dots = float4(0.0f);
            for (uint c = 0; c < K_DIM / 4; c++) {
                float4 k = K_TYPE::load<Keys>(region, K_DIM, p % BLOCK_TOKENS, c);
                dots += k * float4(query[4 * c], query[4 * c + 1], query[4 * c + 2], query[4 * c + 3]);
            }
            score = (dots.x + dots.y) + (dots.z + dots.w);
            if (has_softcap) score = args.softcap * saturating_tanh(score / args.softcap);
        }
        float new_top = max(top, simd_max(score));
        // A tile holds at least one visible position, so that the new largest score is finite.
        float shrink = exp(top - new_top);
        float weight = exp(score - new_top);
        top = new_top;
        total = total * shrink + weight;
        for (uint i = 0; i < CHUNKS; i++) sum[i] *= shrink;
        // The weights of the tile before are still read by slower threads.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        own[lane] = weight;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint from = max(start, tile * simd_width), to = min(end, (tile + 1) * simd_width);
        for (uint at = from; at < to; at++) {
            uint block = blocks[table + at / BLOCK_TOKENS - first_block];
            device const uchar* region = cache_v + (ulong(block) * args.kv_heads + kv_head) * V_TYPE::region(V_DIM);
            float w = own[at - tile * simd_width];
            for (uint i = 0; i < CHUNKS; i++) {
                uint c = lane + i * simd_width;
                if (c < V_DIM / 4) sum[i] += w * V_TYPE::load<Values>(region, V_DIM, at % BLOCK_TOKENS, c);
            }
        }
    }

    // Join the simdgroups.
    total = simd_sum(total);
    if (lane == 0) {
        tops[group] = top;
        totals[group] = total;
    }
    for (uint i = 0; i < CHUNKS; i++) {
        uint c = lane + i * simd_width;
        if (c < V_DIM / 4) {
            for (uint j = 0; j < 4; j++) sums[group * V_DIM + 4 * c + j] = sum[i][j];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    bool with_sink = has_sinks && !is_split;
    float largest = with_sink ? sinks[head] : -INFINITY;
    for (uint g = 0; g < SIMDGROUPS; g++) largest = max(largest, tops[g]);
    float all = with_sink ? exp(sinks[head] - largest) : 0.0f;
    float factors[SIMDGROUPS];
    for (uint g = 0; g < SIMDGROUPS; g++) {
        // A simdgroup, or a whole split, may have had no tile.
        factors[g] = tops[g] == -INFINITY ? 0.0f : exp(tops[g] - largest);
        all += totals[g] * factors[g];
    }
    device float* part = parts + (row * args.splits + split) * PART;
    for (uint i = tid; i < V_DIM; i += SIMDGROUPS * simd_width) {
        float value = 0.0f;
        for (uint g = 0; g < SIMDGROUPS; g++) value += sums[g * V_DIM + i] * factors[g];
        if (is_split) part[i] = value;
        else y[row * V_DIM + i] = value / all;
    }
    if (is_split && tid == 0) {
        part[V_DIM] = largest;
        part[V_DIM + 1] = all;
    }
}

// Joins the parts of splits. Grid: [heads, tokens].
kernel void attention_join(constant AttentionArgs& args [[buffer(0)]],
                           device const float* parts [[buffer(1)]],
                           device const float* sinks [[buffer(2)]],
                           device float* y [[buffer(3)]],
                           uint2 place [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]],
                           uint2 size [[threads_per_threadgroup]]) {
    ulong row = ulong(place.y) * args.heads + place.x;
    device const float* from = parts + row * args.splits * PART;
    float largest = has_sinks ? sinks[place.x] : -INFINITY;
    for (uint s = 0; s < args.splits; s++) largest = max(largest, from[s * PART + V_DIM]);
    float all = has_sinks ? exp(sinks[place.x] - largest) : 0.0f;
    for (uint s = 0; s < args.splits; s++) {
        float top = from[s * PART + V_DIM];
        if (top != -INFINITY) all += from[s * PART + V_DIM + 1] * exp(top - largest);
    }
    for (uint i = tid; i < V_DIM; i += size.x) {
        float value = 0.0f;
        for (uint s = 0; s < args.splits; s++) {
            float top = from[s * PART + V_DIM];
            if (top != -INFINITY) value += from[s * PART + i] * exp(top - largest);
        }
        y[row * V_DIM + i] = value / all;
    }
}
