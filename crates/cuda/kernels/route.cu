// Choice of experts, and the weighted sum of what they return.
#include "common.cuh"

// In the order of graph::op::Gating.
enum { SOFTMAX, SIGMOID, SOFTMAX_CHOSEN };

// A warp for each row.
KERNEL(32, route, RouteArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    if (row >= *a.rows) return;
    DYNAMIC_SHARED(float, gates);
    float* choice = gates + a.experts;
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
        choice[e] = a.bias == nullptr ? s : gates[e] + a.bias[e];
    }
    __syncthreads();
    for (uint32_t slot = 0; slot < a.used; slot++) {
        float best = -INFINITY;
        uint32_t at = a.experts;
        // Those chosen before are NaN, which no comparison finds.
        for (uint32_t e = lane; e < a.experts; e += 32) {
            if (choice[e] > best || (choice[e] == best && at == a.experts)) best = choice[e], at = e;
        }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, step);
            const uint32_t other_at = __shfl_xor_sync(0xffffffffu, at, step);
            if (other > best || (other == best && other_at < at)) best = other, at = other_at;
        }
        // Scores that are no numbers choose nothing; any expert is as good then.
        if (at == a.experts) at = slot;
        __syncthreads();
        if (lane == 0) {
            ids[slot] = int32_t(at);
            weights[slot] = gates[at];
            choice[at] = NAN;
        }
        __syncthreads();
    }
    if (lane != 0) return;
    if (a.gating == SOFTMAX_CHOSEN) {
        float sum = 0.0f, most = weights[0];
        for (uint32_t s = 1; s < a.used; s++) most = fmaxf(most, weights[s]);
        for (uint32_t s = 0; s < a.used; s++) sum += expf(weights[s] - most);
        for (uint32_t s = 0; s < a.used; s++) weights[s] = expf(weights[s] - most) / sum;
    }
    float sum = 1.0f;
    if (a.normalize) {
        sum = 0.0f;
        for (uint32_t s = 0; s < a.used; s++) sum += weights[s];
    }
    for (uint32_t s = 0; s < a.used; s++) weights[s] = weights[s] / sum * a.scale;
}

KERNEL(256, combine, CombineArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    const float* y = a.y + uint64_t(row) * a.used * a.cols;
    const float* weights = a.weights + uint64_t(row) * a.used;
    for (uint32_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t s = 0; s < a.used; s++) sum += y[uint64_t(s) * a.cols + i] * weights[s];
        a.out[uint64_t(row) * a.cols + i] = sum;
    }
}
