// Norms of rows or of their groups.
#include "common.cuh"

// In the order of graph::op::NormKind.
enum { RMS, LAYER, L2 };

// What elements are multiplied with, from the sum of their squares.
__device__ inline float inverse_of(const NormArgs& a, float squares, uint32_t part) {
    return a.kind == L2 ? 1.0f / fmaxf(sqrtf(squares), a.eps) : 1.0f / sqrtf(squares / float(part) + a.eps);
}

// A block for each group of each row.
KERNEL(1024, norm_rows, NormArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x / a.groups, group = blockIdx.x % a.groups;
    if (row >= *a.rows) return;
    const uint32_t part = a.cols / a.groups;
    const uint64_t first = uint64_t(row) * a.cols + group * part;
    const float* x = a.x + first;
    if (a.other != nullptr) {
        // The sum with another value is kept, and takes the value's place.
        float* sum = a.sum + first;
        for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) sum[i] = x[i] + a.other[first + i];
        x = sum;
    }
    // Each thread reads the elements that it wrote.
    float mean = 0.0f;
    if (a.kind == LAYER) {
        float total = 0.0f;
        for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) total += x[i];
        mean = over_block<Sum>(total) / float(part);
    }
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    const float inverse = inverse_of(a, over_block<Sum>(squares), part);
    float* out = a.out + first;
    for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) {
        float y = (x[i] - mean) * inverse;
        if (a.weight != nullptr) y *= a.weight[i];
        if (a.bias != nullptr) y += a.bias[i];
        out[i] = y;
    }
}

// A warp for each group of each row: for narrow groups, such as heads. There is no sum before.
KERNEL(256, norm_groups, NormArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t lane = threadIdx.x % 32, at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (at / a.groups >= *a.rows) return;
    const uint32_t part = a.cols / a.groups;
    const float* x = a.x + uint64_t(at) * part;
    float mean = 0.0f;
    if (a.kind == LAYER) {
        float total = 0.0f;
        for (uint32_t i = lane; i < part; i += 32) total += x[i];
        mean = over_warp<Sum>(total) / float(part);
    }
    float squares = 0.0f;
    for (uint32_t i = lane; i < part; i += 32) squares += (x[i] - mean) * (x[i] - mean);
    const float inverse = inverse_of(a, over_warp<Sum>(squares), part);
    float* out = a.out + uint64_t(at) * part;
    for (uint32_t i = lane; i < part; i += 32) {
        float y = (x[i] - mean) * inverse;
        if (a.weight != nullptr) y *= a.weight[i];
        if (a.bias != nullptr) y += a.bias[i];
        out[i] = y;
    }
}
