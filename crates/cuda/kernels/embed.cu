// Rows of a table: a thread for each piece.
#include "rope_table.cuh"
#include "weights.cuh"

// Piece `piece` of a row.
__device__ inline void put_piece(const EmbedArgs& a, uint32_t row, uint32_t piece) {
    // Negative ones stand for tokens that the step before has picked.
    const int32_t given = a.ids ? a.ids[row] : 0;
    const uint64_t id = given < 0 ? a.picked[-1 - given] : given;
    const uint64_t first = uint64_t(row) * a.table.cols;
    if (PIECE_ELEMENTS * piece >= a.table.cols) return;
    float values[PIECE_ELEMENTS];
    const uint32_t n = decode_piece(a.table, id, piece, values);
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t at = first + PIECE_ELEMENTS * piece + j;
        const float value = values[j] * a.scale;
        a.out[at] = a.x ? a.x[at] + value : value;
    }
}

KERNEL(64, embed, EmbedArgs) {
    wait_for_last();
    let_next_start();
    if (blockIdx.x < *a.rows) put_piece(a, blockIdx.x, blockIdx.y * blockDim.x + threadIdx.x);
}

// With the cosines and sines of the step, by the last blocks of each row.
KERNEL(64, embed_and_turns, EmbedTurnsArgs) {
    wait_for_last();
    const bool embeds = blockIdx.y < a.blocks;
    if (embeds) let_next_start();
    if (blockIdx.x >= *a.embed.rows) return;
    if (embeds) put_piece(a.embed, blockIdx.x, blockIdx.y * blockDim.x + threadIdx.x);
    else put_turns(a.turns, blockIdx.x, (blockIdx.y - a.blocks) * blockDim.x + threadIdx.x, (gridDim.y - a.blocks) * blockDim.x);
}
