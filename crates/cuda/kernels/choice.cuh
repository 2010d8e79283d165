// Choice of experts by their scores.
#pragma once
#include "common.cuh"

// In the order of graph::op::Gating.
enum { SOFTMAX, SIGMOID, SOFTMAX_CHOSEN };

// A number that orders floats as they are ordered themselves; 0 for what is no number.
__device__ inline uint32_t order_of(float v) {
    const uint32_t bits = bits_of_f32(v);
    return v != v ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp, the first of its block, chooses the experts of a row; `gates` is room for two numbers of each expert and one of
// each chosen one.
__device__ inline void choose_experts(const RouteArgs& a, uint32_t row, float* gates) {
    const uint32_t lane = threadIdx.x;
    uint32_t* choice = reinterpret_cast<uint32_t*>(gates + a.experts);
    float* chosen = gates + 2 * a.experts;
    const float* scores = a.scores + uint64_t(row) * a.experts;
    int32_t* ids = a.ids + uint64_t(row) * a.used;
    float* weights = a.weights + uint64_t(row) * a.used;

    float largest = -INFINITY;
    for (uint32_t e = lane; e < a.experts; e += 32) largest = fmaxf(largest, scores[e]);
    largest = over_warp<Max>(largest);
    float total = 0.0f;
    for (uint32_t e = lane; e < a.experts; e += 32) total += expf(scores[e] - largest);
    total = over_warp<Sum>(total);
    for (uint32_t e = lane; e < a.experts; e += 32) {
        const float s = scores[e];
        gates[e] = a.gating == SOFTMAX   ? expf(s - largest) / total
                   : a.gating == SIGMOID ? 1.0f / (1.0f + expf(-s))
                                         : s;
        // All gates grow with the score: without a bias the scores themselves decide, which rounding cannot tie.
        choice[e] = order_of(a.bias == nullptr ? s : gates[e] + a.bias[e]);
    }
    __syncwarp();
    for (uint32_t slot = 0; slot < a.used; slot++) {
        uint32_t best = 0, at = a.experts;
        // Those chosen before are 0.
        for (uint32_t e = lane; e < a.experts; e += 32) {
            if (choice[e] > best) best = choice[e], at = e;
        }
        const uint32_t most = __reduce_max_sync(0xffffffffu, best);
        // Of equals the lower number.
        at = __reduce_min_sync(0xffffffffu, best == most ? at : a.experts);
        // Scores that are no numbers choose nothing; any expert is as good then.
        if (at == a.experts) at = slot;
        __syncwarp();
        if (lane == 0) {
            ids[slot] = int32_t(at);
            chosen[slot] = gates[at];
            choice[at] = 0;
        }
        __syncwarp();
    }
    if (a.gating == SOFTMAX_CHOSEN) {
        float most = -INFINITY, sum = 0.0f;
        for (uint32_t s = lane; s < a.used; s += 32) most = fmaxf(most, chosen[s]);
        most = over_warp<Max>(most);
        for (uint32_t s = lane; s < a.used; s += 32) sum += chosen[s] = expf(chosen[s] - most);
        sum = over_warp<Sum>(sum);
        for (uint32_t s = lane; s < a.used; s += 32) chosen[s] /= sum;
    }
    float sum = 1.0f;
    if (a.normalize) {
        sum = 0.0f;
        for (uint32_t s = lane; s < a.used; s += 32) sum += chosen[s];
        sum = over_warp<Sum>(sum);
    }
    for (uint32_t s = lane; s < a.used; s += 32) weights[s] = chosen[s] / sum * a.scale;
}
