// Cosines and sines of a step, for all layers that share them.
#pragma once
#include "common.cuh"

// Those of pairs `first`, `first + stride`, ... at the position of a row: `[rows, pairs, 2]`.
// Attention reads them before it waits, so the next kernel starts only when all of them are there.
__device__ inline void put_turns(const RopeTableArgs& a, uint32_t row, uint32_t first, uint32_t stride) {
    for (uint32_t i = first; i < a.pairs; i += stride) {
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
