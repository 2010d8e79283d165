// The blocks of every weight type, and the values that they stand for.
//
// Blocks are those of GGUF; crates/quant describes them field by field, and tests hold the two against each other.
// Plain C++ without a library, for CUDA, Metal and the host alike. The includer provides
//   BLOCK_FN      what stands before a function,
//   BLOCK_SRC     pointers to weights' bytes,
//   BLOCK_TABLE   what stands before a constant table,
//   BLOCK_OUT     pointers to a thread's own floats,
// and f16_value, bf16_value, f32_of_bits, which turn the bits of a number into it.
#pragma once
#include "grids.h"

// Ids as in GGUF's tensor directory.
enum WeightType {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23,
    IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42
};

BLOCK_TABLE int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of E2M1.
BLOCK_TABLE int8_t FP4_LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

BLOCK_FN uint32_t u16_at(BLOCK_SRC p, uint32_t at) { return p[at] | uint32_t(p[at + 1]) << 8; }
BLOCK_FN uint32_t u32_at(BLOCK_SRC p, uint32_t at) { return u16_at(p, at) | u16_at(p, at + 2) << 16; }
BLOCK_FN float f16_at(BLOCK_SRC p, uint32_t at) { return f16_value(u16_at(p, at)); }

// Half-byte `k` of the bytes at `p`, low ones first.
BLOCK_FN int nibble(BLOCK_SRC p, uint32_t k) { return p[k / 2] >> (4 * (k % 2)) & 15; }

// The K-quants' order of 2-bit codes: from each 32 bytes four runs of 32 elements, lowest bits first.
BLOCK_FN int crumb(BLOCK_SRC p, uint32_t i) { return p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

// Half-bytes in runs: from each `run` bytes `run` elements of low ones, then `run` of high ones.
BLOCK_FN int nibble_of_run(BLOCK_SRC p, uint32_t i, uint32_t run) {
    return p[i / (2 * run) * run + i % run] >> (i / run % 2 * 4) & 15;
}

// Bit `i / 32` of byte `i % 32`.
BLOCK_FN int plane_bit(BLOCK_SRC p, uint32_t i) { return p[i % 32] >> (i / 32) & 1; }

// The 6-bit scale and minimum of group `g` in the 12 bytes of Q4_K and Q5_K.
BLOCK_FN int scale6(BLOCK_SRC p, uint32_t g) {
    return g < 4 ? p[g] & 63 : (p[g + 4] & 15) | p[g - 4] >> 6 << 4;
}
BLOCK_FN int min6(BLOCK_SRC p, uint32_t g) { return g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | p[g] >> 6 << 4; }

// Bit 7 of a 7-bit sign index makes the number of negative signs even.
BLOCK_FN uint32_t even_signs(uint32_t index) {
    const uint32_t low = index & 127, half = low ^ low >> 4, pair = half ^ half >> 2;
    return low | ((pair ^ pair >> 1) & 1) << 7;
}
BLOCK_FN int with_sign(int magnitude, uint32_t signs, uint32_t j) { return signs >> j & 1 ? -magnitude : magnitude; }

// A scale of NVFP4 (E4M3) in multiples of its least value above 0.
BLOCK_FN int e4m3_units(uint32_t scale) {
    const int exponent = scale >> 3 & 15, fraction = scale & 7;
    if (scale == 0x7f) return 0;
    return exponent == 0 ? fraction : (8 + fraction) << (exponent - 1);
}

// Digit `n` in base 3 of a byte that is a fraction of 256.
BLOCK_FN int ternary_digit(uint32_t byte, uint32_t n) {
    const uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return int(((byte * power & 255) * 3) >> 8);
}
BLOCK_FN int ternary_code(BLOCK_SRC p, uint32_t i) {
    if (i < 160) return ternary_digit(p[i % 32], i / 32);
    if (i < 240) return ternary_digit(p[32 + (i - 160) % 16], (i - 160) / 16);
    return ternary_digit(p[48 + (i - 240) % 4], (i - 240) / 4);
}

// Values of the elements `8 e` to `8 e + 8` of one block. The formula is `scale * level + min` with a scale, and a
// minimum in some types, for groups of at least eight elements.
BLOCK_FN void decode_eight_of_block(uint32_t type, BLOCK_SRC p, uint32_t e, BLOCK_OUT out) {
    int q[8];
    float scale = 0.0f, min = 0.0f;
    const uint32_t i = 8 * e;
    switch (type) {
    case Q4_0:
        scale = f16_at(p, 0);
        for (uint32_t j = 0; j < 8; j++) q[j] = nibble_of_run(p + 2, i + j, 16) - 8;
        break;
    case Q4_1:
        scale = f16_at(p, 0);
        min = f16_at(p, 2);
        for (uint32_t j = 0; j < 8; j++) q[j] = nibble_of_run(p + 4, i + j, 16);
        break;
    case Q5_0: {
        scale = f16_at(p, 0);
        const uint32_t high = p[2 + e];
        for (uint32_t j = 0; j < 8; j++) q[j] = (nibble_of_run(p + 6, i + j, 16) | int(high >> j & 1) << 4) - 16;
        break;
    }
    case Q5_1: {
        scale = f16_at(p, 0);
        min = f16_at(p, 2);
        const uint32_t high = p[4 + e];
        for (uint32_t j = 0; j < 8; j++) q[j] = nibble_of_run(p + 8, i + j, 16) | int(high >> j & 1) << 4;
        break;
    }
    case Q8_0:
        scale = f16_at(p, 0);
        for (uint32_t j = 0; j < 8; j++) q[j] = int8_t(p[2 + i + j]);
        break;
    case Q2_K:
        scale = f16_at(p, 80) * float(p[e / 2] & 15);
        min = -f16_at(p, 82) * float(p[e / 2] >> 4);
        for (uint32_t j = 0; j < 8; j++) q[j] = crumb(p + 16, i + j);
        break;
    case Q3_K: {
        const uint32_t g = e / 2;
        const int low = p[96 + g % 8] >> (4 * (g / 8)) & 15, high = p[104 + g % 4] >> (2 * (g / 4)) & 3;
        scale = f16_at(p, 108) * float((low | high << 4) - 32);
        for (uint32_t j = 0; j < 8; j++) q[j] = (crumb(p + 32, i + j) | plane_bit(p, i + j) << 2) - 4;
        break;
    }
    case Q4_K:
        scale = f16_at(p, 0) * float(scale6(p + 4, e / 4));
        min = -f16_at(p, 2) * float(min6(p + 4, e / 4));
        for (uint32_t j = 0; j < 8; j++) q[j] = nibble_of_run(p + 16, i + j, 32);
        break;
    case Q5_K:
        scale = f16_at(p, 0) * float(scale6(p + 4, e / 4));
        min = -f16_at(p, 2) * float(min6(p + 4, e / 4));
        for (uint32_t j = 0; j < 8; j++) q[j] = nibble_of_run(p + 48, i + j, 32) | plane_bit(p + 16, i + j) << 4;
        break;
    case Q6_K:
        scale = f16_at(p, 208) * float(int8_t(p[192 + e / 2]));
        for (uint32_t j = 0; j < 8; j++) q[j] = (nibble_of_run(p, i + j, 64) | crumb(p + 128, i + j) << 4) - 32;
        break;
    case IQ2_XXS: {
        const uint32_t at = 2 + e / 4 * 8, word = u32_at(p, at + 4), signs = even_signs(word >> (7 * (e % 4)));
        // A group's scale is (s + 1/2) / 4, kept in eighths.
        scale = f16_at(p, 0) / 8.0f * float(2 * (word >> 28) + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = with_sign(grid_IQ2_XXS(p[at + e % 4], j), signs, j);
        break;
    }
    case IQ2_XS: {
        const uint32_t word = u16_at(p, 2 + 2 * e), signs = even_signs(word >> 9);
        scale = f16_at(p, 0) / 8.0f * float(2 * nibble(p + 66, e / 2) + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = with_sign(grid_IQ2_XS(word & 511, j), signs, j);
        break;
    }
    case IQ2_S: {
        const uint32_t index = p[2 + e] | (p[66 + e / 4] >> (2 * (e % 4)) & 3) << 8;
        scale = f16_at(p, 0) / 8.0f * float(2 * nibble(p + 74, e / 2) + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = with_sign(grid_IQ2_S(index, j), p[34 + e], j);
        break;
    }
    case IQ3_XXS: {
        const uint32_t word = u32_at(p, 66 + e / 4 * 4), signs = even_signs(word >> (7 * (e % 4)));
        // A group's scale is (s + 1/2) / 2, kept in quarters.
        scale = f16_at(p, 0) / 4.0f * float(2 * (word >> 28) + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = with_sign(grid_IQ3_XXS(p[2 + 2 * e + j / 4], j % 4), signs, j);
        break;
    }
    case IQ3_S:
        scale = f16_at(p, 0) * float(2 * nibble(p + 106, e / 4) + 1);
        for (uint32_t j = 0; j < 8; j++) {
            const uint32_t four = 2 * e + j / 4, index = p[2 + four] | (p[66 + four / 8] >> (four % 8) & 1) << 8;
            q[j] = with_sign(grid_IQ3_S(index, j % 4), p[74 + e], j);
        }
        break;
    case IQ1_S: {
        const uint32_t word = u16_at(p, 34 + e / 4 * 2), index = p[2 + e] | (word >> (3 * (e % 4)) & 7) << 8;
        scale = f16_at(p, 0) / 8.0f * float(2 * (word >> 12 & 7) + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = grid_IQ1_S(index, j) + (word & 0x8000 ? -1 : 1);
        break;
    }
    case IQ1_M: {
        uint32_t d = 0;
        for (uint32_t k = 0; k < 4; k++) d |= u16_at(p, 48 + 2 * k) >> 12 << (4 * k);
        const uint32_t g = e / 2, three = u16_at(p, 48 + g / 4 * 2) >> (3 * (g % 4)) & 7;
        const uint32_t high = nibble(p + 32, e), index = p[e] | (high & 7) << 8;
        scale = f16_value(d) / 8.0f * float(2 * three + 1);
        for (uint32_t j = 0; j < 8; j++) q[j] = grid_IQ1_S(index, j) + (high & 8 ? -1 : 1);
        break;
    }
    case IQ4_NL:
        scale = f16_at(p, 0);
        for (uint32_t j = 0; j < 8; j++) q[j] = IQ4_LEVELS[nibble_of_run(p + 2, i + j, 16)];
        break;
    case IQ4_XS: {
        const uint32_t g = e / 4, high = u16_at(p, 2) >> (2 * g) & 3;
        scale = f16_at(p, 0) * float((nibble(p + 4, g) | int(high) << 4) - 32);
        for (uint32_t j = 0; j < 8; j++) q[j] = IQ4_LEVELS[nibble_of_run(p + 8, i + j, 16)];
        break;
    }
    case TQ1_0:
        scale = f16_at(p, 52);
        for (uint32_t j = 0; j < 8; j++) q[j] = ternary_code(p, i + j) - 1;
        break;
    case TQ2_0:
        scale = f16_at(p, 64);
        for (uint32_t j = 0; j < 8; j++) q[j] = crumb(p, i + j) - 1;
        break;
    case MXFP4: {
        const uint32_t exponent = p[0];
        scale = f32_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
        for (uint32_t j = 0; j < 8; j++) q[j] = FP4_LEVELS[nibble_of_run(p + 1, i + j, 16)];
        break;
    }
    case NVFP4:
        scale = float(e4m3_units(p[e / 2])) / 1024.0f;
        for (uint32_t j = 0; j < 8; j++) q[j] = FP4_LEVELS[nibble_of_run(p + 4, i + j, 8)];
        break;
    case Q1_0:
        scale = f16_at(p, 0);
        for (uint32_t j = 0; j < 8; j++) q[j] = p[2 + e] >> j & 1 ? 1 : -1;
        break;
    default: // Q2_0
        scale = f16_at(p, 0);
        for (uint32_t j = 0; j < 8; j++) q[j] = (p[2 + 2 * e + j / 4] >> (2 * (j % 4)) & 3) - 1;
        break;
    }
    for (uint32_t j = 0; j < 8; j++) out[j] = scale * float(q[j]) + min;
}

// Values of `n` elements of a row, at most eight, from element `8 piece` on. `elements` and `bytes` are those of a
// block; blocks of several elements are always whole.
BLOCK_FN void decode_eight(
    uint32_t type, uint32_t elements, uint32_t bytes, BLOCK_SRC row, uint32_t piece, uint32_t n, BLOCK_OUT out
) {
    if (elements > 1) {
        const uint32_t first = 8 * piece;
        decode_eight_of_block(type, row + uint64_t(first / elements) * bytes, first % elements / 8, out);
        return;
    }
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t at = uint64_t(8 * piece + j) * bytes;
        if (type == F32) out[j] = f32_of_bits(u32_at(row + at, 0));
        else if (type == F16) out[j] = f16_at(row + at, 0);
        else out[j] = bf16_value(u16_at(row + at, 0));
    }
}
