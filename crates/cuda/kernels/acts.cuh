// The 16-bit image of activations: the right matrix of tensor products, ready for ldmatrix and wgmma.
//
// [64 columns][row group of 8][8 rows x 128 bytes], the 16-byte chunks of a row in the order chunk ^ row. The columns of a
// tile (256) are renamed so that the lanes of tiles.cuh hold what tensor cores want: step s = 0..15 of 16 columns takes
// columns 64t + 4s + i of t = 0..3, i = 0..3, at place 2t + i % 2 + 8 * (i / 2).
#pragma once
#include "ptx.cuh"

constexpr int GROUP_ROWS = 8;
constexpr int GROUP_BYTES = 1024;

// Where chunk 0..31 of a tile of a row lies, in bytes: columns 64t + 2 * chunk, + 1 of t = 0..3.
INLINE size_t chunk_offset(uint32_t row, uint32_t tile, uint32_t chunk, uint32_t groups) {
    const size_t piece = 4 * tile + chunk / 8;
    return (piece * groups + row / GROUP_ROWS) * GROUP_BYTES + row % GROUP_ROWS * 128 + ((chunk ^ row) % 8 * 16);
}
