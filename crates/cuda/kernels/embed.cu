// Rows of a table: a block for each token.
#include "weights.cuh"

KERNEL(256, embed, EmbedArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    const uint64_t id = a.ids[row];
    float* out = a.out + uint64_t(row) * a.table.cols;
    for (uint32_t piece = threadIdx.x; 8 * piece < a.table.cols; piece += blockDim.x) {
        float values[8];
        const uint32_t n = decode_piece(a.table, id, piece, values);
        for (uint32_t j = 0; j < n; j++) out[8 * piece + j] = values[j] * a.scale;
    }
}
