// Choice of experts, and the weighted sum of what they give.
#include "args.h"
#include "common.h"

// The order of `Gating` in args.rs.
enum { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_CHOSEN = 2 };

FUNCTION_CONSTANT(uint, gating, 1);
FUNCTION_CONSTANT(bool, has_bias, 2);
FUNCTION_CONSTANT(bool, divide_by_sum, 3);

enum : uint { MAX_EXPERTS = 512 };

// The larger of two candidates, of equals the one of lower number; by lanes of a simdgroup.
inline uint best_of_simdgroup(float value, uint index) {
    float largest = simd_max(value);
    return simd_min(value == largest ? index : uint(MAX_EXPERTS));
}

// One simdgroup takes one row: scores [rows, experts] to ids [rows, used] and weights [rows, used].
kernel void route(constant RouteArgs& args [[buffer(0)]],
                  device const float* scores [[buffer(1)]],
                  device const float* bias [[buffer(2)]],
                  device int* ids [[buffer(3)]],
                  device float* weights [[buffer(4)]],
                  uint row [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    // What a chosen expert weighs, and what is left to choose by.
    SHARED(float, gates, MAX_EXPERTS);
    SHARED(float, choice, MAX_EXPERTS);
    device const float* from = scores + ulong(row) * args.experts;
    float top = -INFINITY;
    for (uint e = lane; e < args.experts; e += simd_width) top = max(top, from[e]);
    top = simd_max(top);
    float sum = 0.0f;
    for (uint e = lane; e < args.experts; e += simd_width) sum += exp(from[e] - top);
    sum = simd_sum(sum);
    for (uint e = lane; e < args.experts; e += simd_width) {
        float score = from[e];
        float gate = gating == SOFTMAX ? exp(score - top) / sum : gating == SIGMOID ? 1.0f / (1.0f + exp(-score)) : score;
        gates[e] = gate;
        // Without a bias, the order of gates is that of scores, which are not rounded.
        choice[e] = has_bias ? gate + bias[e] : score;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device int* to_ids = ids + ulong(row) * args.used;
    device float* to = weights + ulong(row) * args.used;
    float first = 0.0f, all = 0.0f;
    for (uint s = 0; s < args.used; s++) {
        float value = -INFINITY;
        uint index = MAX_EXPERTS;
        for (uint e = lane; e < args.experts; e += simd_width) {
            if (choice[e] > value) {
                value = choice[e];
                index = e;
            }
        }
        uint chosen = best_of_simdgroup(value, index);
        float gate = gates[chosen];
        // All have read what the first lane is about to change.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (s == 0) first = gate;
        float weight = gating == SOFTMAX_CHOSEN ? exp(gate - first) : gate;
        all += weight;
        if (lane == 0) {
            choice[chosen] = -INFINITY;
            to_ids[s] = int(chosen);
            gates[chosen] = weight;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float factor = divide_by_sum || gating == SOFTMAX_CHOSEN ? args.scale / all : args.scale;
    // The weights were kept where the gates had been.
    if (lane == 0) {
        for (uint s = 0; s < args.used; s++) to[s] = gates[uint(to_ids[s])] * factor;
    }
}

// Sum of the experts' outputs y [rows, used * cols], each times its weight [rows, used]: out [rows, cols].
kernel void combine(constant CombineArgs& args [[buffer(0)]],
                    device const float* y [[buffer(1)]],
                    device const float* weights [[buffer(2)]],
                    device float* out [[buffer(3)]],
                    uint2 place [[thread_position_in_grid]]) {
    if (place.x >= args.cols) return;
    float sum = 0.0f;
    for (uint s = 0; s < args.used; s++) {
        ulong slot = ulong(place.y) * args.used + s;
        sum += weights[slot] * y[slot * args.cols + place.x];
    }
    out[ulong(place.y) * args.cols + place.x] = sum;
}

// Sorts slots by expert: ids [slots] to counts [experts] and lists [experts, slots]. Grid: [experts] in threads.
kernel void sort_by_expert(constant SortArgs& args [[buffer(0)]],
                           device const int* ids [[buffer(1)]],
                           device uint* counts [[buffer(2)]],
                           device uint* lists [[buffer(3)]],
                           uint expert [[thread_position_in_grid]]) {
    if (expert >= args.experts) return;
    uint count = 0;
    for (uint slot = 0; slot < args.slots; slot++) {
        if (uint(ids[slot]) != expert) continue;
        lists[ulong(expert) * args.slots + count] = slot;
        count++;
    }
    counts[expert] = count;
}
