// Weights as they lie in the file, decoded piece by piece.
#pragma once
#include "common.cuh"

#define BLOCK_FN __device__ inline
#define BLOCK_SRC const uint8_t*
#define BLOCK_OUT float*
#define BLOCK_CODES uint*
#define BLOCK_TABLE static __device__ const
typedef unsigned int uint;
typedef unsigned short ushort;
__device__ inline uint u16_at(const uint8_t* p) { return p[0] | uint(p[1]) << 8; }
#include "decode.h"

// The values of a piece of a row, and how many there are.
__device__ inline uint32_t decode_piece(const RawMatrix& m, uint64_t row, uint32_t piece, float* out) {
    const uint32_t n = m.cols - PIECE_ELEMENTS * piece < PIECE_ELEMENTS ? m.cols - PIECE_ELEMENTS * piece : PIECE_ELEMENTS;
    decode_elements(m.type, m.elements, m.bytes, m.data + row * m.row_bytes, piece, n, out);
    return n;
}
