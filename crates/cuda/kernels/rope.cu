// Rotary position embedding. Sines and cosines are computed once a step, for all layers that share them.
#include "common.cuh"

// Cosine and sine of each pair at the position of each token: `[tokens, pairs, 2]`.
// Attention reads it before it waits, so the next kernel starts only when all of it is there.
KERNEL(256, rope_table, RopeTableArgs) {
    wait_for_last();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    for (uint32_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        // Whole turns are taken off while the angle still has the precision of f64.
        const int32_t position = a.positions[a.streams == nullptr ? row : 4 * row + a.streams[i]];
        const double turns = double(position) * a.turns[i];
        const float rest = float(turns - floor(turns));
        float sine, cosine;
        sincospif(2.0f * rest, &sine, &cosine);
        float* out = a.out + 2 * (uint64_t(row) * a.pairs + i);
        out[0] = cosine * a.magnitude;
        out[1] = sine * a.magnitude;
    }
    show_written();
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
