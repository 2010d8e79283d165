// Choice of experts, and the weighted sum of what they return.
#include "choice.cuh"

// A warp for each row.
KERNEL(32, route, RouteArgs) {
    wait_for_last();
    let_next_start();
    if (blockIdx.x >= *a.rows) return;
    DYNAMIC_SHARED(float, shared);
    choose_experts(a, blockIdx.x, shared);
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
