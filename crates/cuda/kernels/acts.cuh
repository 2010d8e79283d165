// The 16-bit image of activations: the right matrix of tensor products, ready for ldmatrix and wgmma.
//
// [64 columns][row group of 8][8 rows x 128 bytes], the 16-byte chunks of a row in the order chunk ^ row. The columns of a
// tile (256) are renamed so that the lanes of tiles.cuh hold what tensor cores want: step s = 0..15 of 16 columns takes
// columns 64t + 4s + i of t = 0..3, i = 0..3, at place 2t + i % 2 + 8 * (i / 2).
#pragma once
#include "ptx.cuh"
#include "quantize.cuh"

constexpr int GROUP_ROWS = 8;
constexpr int GROUP_BYTES = 1024;

// Where chunk 0..31 of a tile of a row lies, in bytes: columns 64t + 2 * chunk, + 1 of t = 0..3.
INLINE size_t chunk_offset(uint32_t row, uint32_t tile, uint32_t chunk, uint32_t groups) {
    const size_t piece = 4 * tile + chunk / 8;
    return (piece * groups + row / GROUP_ROWS) * GROUP_BYTES + row % GROUP_ROWS * 128 + ((chunk ^ row) % 8 * 16);
}

// The int8 image of up to 8 tokens, of a tile (256 columns, 8 pieces of 32): codes [piece][quartets 0..3, 4..7][token] of 16
// bytes; scales, f32 [piece / 2][token / 2][piece % 2][token % 2]; sums of activations [token][piece] in two tf32 each.
constexpr uint32_t FEW_TOKENS = 8;
constexpr int FEW_SCALES = 2048, FEW_SUMS = 2304, FEW_BYTES = 2816;

INLINE uint8_t* few_quartet(uint8_t* tile, uint32_t piece, uint32_t quartet, uint32_t token) {
    return tile + ((2 * piece + quartet / 4) * FEW_TOKENS + token) * 16 + quartet % 4 * 4;
}
// The scale of a piece of a token, and the sum of its codes.
INLINE void put_few_scale(uint8_t* tile, uint32_t piece, uint32_t token, float d, int codes) {
    reinterpret_cast<float*>(tile + FEW_SCALES)[piece / 2 * 16 + token / 2 * 4 + piece % 2 * 2 + token % 2] = d;
    const float sum = d * static_cast<float>(codes), high = __uint_as_float(__float_as_uint(sum) & 0xffffe000u);
    reinterpret_cast<float2*>(tile + FEW_SUMS)[token * 8 + piece] = make_float2(high, sum - high);
}

// The 8 columns of chunk `i` of a token to the int8 image. The four lanes of 32 columns come together.
INLINE void put_few(const Float8& x, uint32_t token, uint32_t i, uint8_t* image) {
    float top = largest(x);
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 2));
    const Quantized8 q(x, top);
    int sum = q.sum + __shfl_xor_sync(WARP, q.sum, 1);
    sum += __shfl_xor_sync(WARP, sum, 2);
    uint8_t* const tile = image + i / 32 * FEW_BYTES;
    const uint32_t piece = i % 32 / 4;
    *reinterpret_cast<uint2*>(few_quartet(tile, piece, i % 4 * 2, token)) = q.quartets;
    if (i % 4 == 0) put_few_scale(tile, piece, token, q.scale, sum);
}

// The same of 32 columns from `column` on, of which lane m of 8 has columns 8j + m: these are lanes `2m` of the 16 in `lanes`, or
// those behind them.
INLINE void put_few_strided(const float (&x)[4], uint32_t token, uint32_t column, uint32_t m, uint32_t lanes, uint8_t* image) {
    float top = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int step = 2; step <= 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(lanes, top, step));
    const float inverse = inverse_of(top);
    uint8_t* const tile = image + column / 256 * FEW_BYTES;
    const uint32_t piece = column % 256 / 32;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int q = __float2int_rn(x[j] * inverse);
        few_quartet(tile, piece, 2 * j, token)[quartet_place(m)] = static_cast<uint8_t>(q);
        sum += q;
    }
#pragma unroll
    for (int step = 2; step <= 8; step *= 2) sum += __shfl_xor_sync(lanes, sum, step);
    if (m == 0) put_few_scale(tile, piece, token, scale_of(top), sum);
}

// Two columns for each t of a chunk: lane L has chunk L of the 32 of a tile. Columns beyond `cols` are zeros.
struct Chunk {
    float2 v[4];
};
INLINE uint32_t chunk_column(uint32_t tile, int t, uint32_t lane) { return tile * 256 + 64 * t + 2 * lane; }
INLINE Chunk load_chunk(const float* row, uint32_t cols, uint32_t tile, uint32_t lane) {
    Chunk c;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const uint32_t at = chunk_column(tile, t, lane);
        c.v[t] = at < cols ? __ldcg(reinterpret_cast<const float2*>(row + at)) : make_float2(0, 0);
    }
    return c;
}
template <bool BF16> INLINE uint4 image_chunk(const Chunk& c, float factor) {
    uint32_t w[4];
#pragma unroll
    for (int t = 0; t < 4; t++) w[t] = pack_pair<BF16>(c.v[t].x * factor, c.v[t].y * factor);
    return make_uint4(w[0], w[1], w[2], w[3]);
}
INLINE float largest(float2 v) { return fmaxf(fabsf(v.x), fabsf(v.y)); }

// f16 rows are divided by a power of two that brings their largest value, `top`, below 1024: that power in `scale`, what to
// multiply by is returned. 1 for zeros and what is not finite.
INLINE float image_factor(float top, float& scale) {
    const uint32_t exponent = __float_as_uint(top) >> 23;
    const bool normal = exponent > 9 && exponent < 255;
    scale = normal ? __uint_as_float((exponent - 9) << 23) : 1.0f;
    return normal ? __uint_as_float((127 + 127 + 9 - exponent) << 23) : 1.0f;
}
