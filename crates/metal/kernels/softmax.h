// Softmax of eight rows by a simdgroup of 32: four threads share a row of scores, sums are simdgroup matrices.
#pragma once
#include "common.h"

// The largest of the four threads of a row, and their sum.
inline float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, ushort(1)));
    return max(x, simd_shuffle_xor(x, ushort(2)));
}

inline float row_sum(float x) {
    x += simd_shuffle_xor(x, ushort(1));
    return x + simd_shuffle_xor(x, ushort(2));
}

// Multiplies each row of COUNT matrices by its factor: `diagonal` holds the factors on an otherwise empty diagonal.
template <uint COUNT>
inline void scale_rows(thread simdgroup_float8x8* sums, threadgroup const float* diagonal) {
    simdgroup_float8x8 factors;
    simdgroup_load(factors, diagonal, 8);
    for (uint i = 0; i < COUNT; i++) {
        simdgroup_float8x8 scaled = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_multiply_accumulate(scaled, factors, sums[i], scaled);
        sums[i] = scaled;
    }
}

