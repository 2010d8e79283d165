// Elements of weights of any type, a piece at a time, for kernels without a form of their own for the type and for the host.
//
// Besides what blocks.h wants, the includer provides bf16_value(bits).
#pragma once

// Ids as in GGUF's tensor directory.
enum WeightType {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23,
    IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42
};

// Elements of a piece: what the decoders of blocks make at once.
constexpr uint PIECE_ELEMENTS = 16;

namespace blocks {
#include "../../quant/kernels/blocks.h"
}  // namespace blocks

// Elements `16 e` to `16 e + 16` of one block.
BLOCK_FN void decode_piece_of_block(uint type, BLOCK_SRC p, uint e, BLOCK_OUT out) {
    switch (type) {
#define DECODE(TYPE) case TYPE: return blocks::TYPE::decode16(p, e, out);
    DECODE(Q4_0) DECODE(Q4_1) DECODE(Q5_0) DECODE(Q5_1) DECODE(Q8_0) DECODE(Q2_K)
    DECODE(Q3_K) DECODE(Q4_K) DECODE(Q5_K) DECODE(Q6_K) DECODE(IQ2_XXS) DECODE(IQ2_XS)
    DECODE(IQ3_XXS) DECODE(IQ1_S) DECODE(IQ4_NL) DECODE(IQ3_S) DECODE(IQ2_S) DECODE(IQ4_XS)
    DECODE(IQ1_M) DECODE(TQ1_0) DECODE(TQ2_0) DECODE(MXFP4) DECODE(NVFP4) DECODE(Q1_0)
    DECODE(Q2_0)
#undef DECODE
    }
}

// Values of `n` elements of a row, at most PIECE_ELEMENTS, from element `PIECE_ELEMENTS * piece` on. `elements` and `bytes` are those of a
// block; blocks of several elements are always whole.
BLOCK_FN void decode_elements(
    uint type, uint elements, uint bytes, BLOCK_SRC row, uint piece, uint n, BLOCK_OUT out
) {
    if (elements > 1) {
        const uint first = PIECE_ELEMENTS * piece;
        decode_piece_of_block(type, row + uint64_t(first / elements) * bytes, first % elements / PIECE_ELEMENTS, out);
        return;
    }
    for (uint j = 0; j < n; j++) {
        const uint64_t at = uint64_t(PIECE_ELEMENTS * piece + j) * bytes;
        if (type == F32) out[j] = f32_of_bits(u16_at(row + at) | u16_at(row + at + 2) << 16);
        else if (type == F16) out[j] = f16_value(u16_at(row + at));
        else out[j] = bf16_value(u16_at(row + at));
    }
}
