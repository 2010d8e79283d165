// Rotary position embedding.
#include "rope_table.cuh"

KERNEL(256, rope_table, RopeTableArgs) {
    wait_for_last();
    if (blockIdx.x < *a.rows) put_turns(a, blockIdx.x, threadIdx.x, blockDim.x);
}

KERNEL(256, rope, RopeArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    const uint64_t first = uint64_t(row) * a.heads * a.head_dim;
    const float* table = a.table + 2 * uint64_t(row) * a.pairs;
    // Elements of a head that do not rotate are copied; each counts as a pair of its own.
    const uint32_t units = a.pairs + (a.head_dim - 2 * a.pairs);
    for (uint32_t u = threadIdx.x; u < a.heads * units; u += blockDim.x) {
        const uint32_t i = u % units;
        const float* x = a.x + first + u / units * a.head_dim;
        float* out = a.out + first + u / units * a.head_dim;
        if (i >= a.pairs) {
            out[i + a.pairs] = x[i + a.pairs];
            continue;
        }
        const uint32_t p = a.adjacent ? 2 * i : i, q = a.adjacent ? 2 * i + 1 : i + a.pairs;
        const float cosine = table[2 * i], sine = table[2 * i + 1], xp = x[p], xq = x[q];
        out[p] = xp * cosine - xq * sine;
        out[q] = xp * sine + xq * cosine;
    }
}
