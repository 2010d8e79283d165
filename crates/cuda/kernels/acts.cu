// Activations for products: int8 of one row, 16-bit images of many; with the sum and the norm before them.
#ifndef WOOTZ_EMULATE
#include "acts.cuh"
#include "matvec.cuh"

namespace {

// At most. With few rows many warps share one, since all is latency; with many rows small blocks are better.
constexpr int ROW_THREADS = 1024;
// Tiles of 256 columns that a warp keeps; more are read again.
constexpr int KEPT = 3;

// Two columns for each t of a chunk: lane L has chunk L of the 32 of a tile.
struct Chunk {
    float2 v[4];
};
INLINE float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
INLINE float largest(float2 v) { return fmaxf(fabsf(v.x), fabsf(v.y)); }

// One row a block, a tile a warp at once. f16 rows are divided by a power of two that brings their largest value below 1024.
template <bool BF16> INLINE void pack(const ActsArgs& a) {
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_last();
    let_next_start();
    if (a.rows && row >= *a.rows) return;
    const size_t start = static_cast<size_t>(row) * a.cols;
    float squares = 0, top = 0;
    auto column = [&](uint32_t tile, int t) { return tile * 256 + 64 * t + 2 * lane; };
    auto load = [&](uint32_t tile, bool first) {
        Chunk c = {};
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t at = column(tile, t);
            if (at >= a.cols) continue;
            c.v[t] = __ldcg(reinterpret_cast<const float2*>(a.x + start + at));
            if (a.y) c.v[t] = add2(c.v[t], __ldcg(reinterpret_cast<const float2*>(a.y + start + at)));
            if (a.y && a.y_tail) c.v[t] = add2(c.v[t], __ldcg(reinterpret_cast<const float2*>(a.y_tail + start + at)));
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t at = column(tile, t);
            if (at >= a.cols) continue;
            if (first && a.x_out) *reinterpret_cast<float2*>(a.x_out + start + at) = c.v[t];
            squares += c.v[t].x * c.v[t].x + c.v[t].y * c.v[t].y;
            if (a.norm) {
                const float2 w = __ldg(reinterpret_cast<const float2*>(a.norm + at));
                c.v[t] = make_float2(c.v[t].x * w.x, c.v[t].y * w.y);
            }
            top = fmaxf(top, largest(c.v[t]));
        }
        return c;
    };
    const uint32_t warps = blockDim.x / 32;
    Chunk kept[KEPT];
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        if (warp + n * warps < a.k_tiles) kept[n] = load(warp + n * warps, true);
    }
    for (uint32_t tile = warp + KEPT * warps; tile < a.k_tiles; tile += warps) load(tile, true);
    float factor = 1;
    if (a.norm) factor = rsqrtf(over_block<Sum>(squares) / float(a.cols) + a.eps);
    if (!BF16) {
        top = over_block<Max>(top) * factor;
        // 2 to the power of top's exponent less 9; 1 for zeros and what is not finite.
        const uint32_t exponent = __float_as_uint(top) >> 23;
        const bool normal = exponent > 9 && exponent < 255;
        if (threadIdx.x == 0) a.scale[row] = normal ? __uint_as_float((exponent - 9) << 23) : 1.0f;
        if (normal) factor *= __uint_as_float((127 + 127 + 9 - exponent) << 23);
    }
    auto put = [&](const Chunk& c, uint32_t tile) {
        uint32_t w[4];
#pragma unroll
        for (int t = 0; t < 4; t++) w[t] = pack_pair<BF16>(c.v[t].x * factor, c.v[t].y * factor);
        *reinterpret_cast<uint4*>(a.out + chunk_offset(row, tile, lane, a.groups)) = make_uint4(w[0], w[1], w[2], w[3]);
    };
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        if (warp + n * warps < a.k_tiles) put(kept[n], warp + n * warps);
    }
    for (uint32_t tile = warp + KEPT * warps; tile < a.k_tiles; tile += warps) put(load(tile, false), tile);
}

}  // namespace

KERNEL(ROW_THREADS, pack_rows_f16, ActsArgs) { pack<false>(a); }
KERNEL(ROW_THREADS, pack_rows_bf16, ActsArgs) { pack<true>(a); }

// One row to int8 activations: for mat-vecs with more columns than they can normalise themselves.
KERNEL(MATVEC_THREADS, quantize_row, ActsArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t chunks = a.k_tiles * 32;
    auto load = [&](uint32_t i) {
        Float8 x = {};
        if (8 * i >= a.cols) return x;
        x = load8(a.x, i);
        if (a.y) add8(x, load8(a.y, i));
        if (a.y && a.y_tail) add8(x, load8(a.y_tail, i));
        return x;
    };
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < chunks; i += MATVEC_THREADS) {
        const Float8 x = load(i);
#pragma unroll
        for (int e = 0; e < 8; e++) squares += x.v[e] * x.v[e];
    }
    const float factor = a.norm ? rsqrtf(over_block<Sum>(squares) / float(a.cols) + a.eps) : 1.0f;
    for (uint32_t i = threadIdx.x; i < chunks; i += MATVEC_THREADS) {
        Float8 x = load(i);
        if (a.x_out && 8 * i < a.cols) store8(a.x_out, i, x);
        if (a.norm && 8 * i < a.cols) {
            const Float8 w = load8(a.norm, i);
#pragma unroll
            for (int e = 0; e < 8; e++) x.v[e] *= factor * w.v[e];
        }
        put_int8(x, i, a.out);
    }
}
#endif
