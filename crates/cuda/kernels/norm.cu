// Norms of rows or of their groups: a block for each group of each row.
#include "common.cuh"

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
    if (a.centred) {
        float total = 0.0f;
        for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) total += x[i];
        mean = over_block<Sum>(total) / float(part);
    }
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    const float inverse = 1.0f / sqrtf(over_block<Sum>(squares) / float(part) + a.eps);
    float* out = a.out + first;
    for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) {
        float y = (x[i] - mean) * inverse;
        if (a.weight != nullptr) y *= a.weight[i];
        if (a.bias != nullptr) y += a.bias[i];
        out[i] = y;
    }
}
