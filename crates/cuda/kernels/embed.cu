// Rows of a table: a thread for each piece.
#include "weights.cuh"

KERNEL(64, embed, EmbedArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    // Negative ones stand for tokens that the step before has picked.
    const int32_t given = a.ids ? a.ids[row] : 0;
    const uint64_t id = given < 0 ? a.picked[-1 - given] : given;
    const uint64_t first = uint64_t(row) * a.table.cols;
    const uint32_t piece = blockIdx.y * blockDim.x + threadIdx.x;
    if (PIECE_ELEMENTS * piece >= a.table.cols) return;
    float values[PIECE_ELEMENTS];
    const uint32_t n = decode_piece(a.table, id, piece, values);
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t at = first + PIECE_ELEMENTS * piece + j;
        const float value = values[j] * a.scale;
        a.out[at] = a.x ? a.x[at] + value : value;
    }
}
