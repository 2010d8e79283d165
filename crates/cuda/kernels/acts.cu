// Activations for products: int8 of one row, 16-bit images of many; with the sum and the norm before them.
#ifndef WOOTZ_EMULATE
#include "acts.cuh"
#include "matvec.cuh"

// Threads of a block at most, and tiles of 256 columns that a warp keeps; more are read again. With few rows many warps
// share one, since all is latency; with many rows several blocks share a multiprocessor.
constexpr int FEW_THREADS = 1024, FEW_KEPT = 3;
constexpr int MANY_THREADS = 448, MANY_KEPT = 6;
// Of few rows with further summands; as many of these are loaded at once, since each time costs the way to the cache.
constexpr int PARTS_THREADS = 448, PARTS_KEPT = 2;
constexpr int TAILS_AHEAD = 10;
// Of the int8 image: two tiles of columns, so that a row of a usual width is spread over many multiprocessors.
constexpr int FEW_PACK_THREADS = 64, FEW_TAILS_AHEAD = 6;

INLINE float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// The sum of one and the largest of the other value of each thread of the blocks of a row, in every thread. Other blocks may
// read this one's shared memory until all have met once more.
INLINE void over_row_both(float& sum, float& top, uint32_t blocks) {
    __shared__ float2 parts[32], of_block;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    sum = over_warp<Sum>(sum), top = over_warp<Max>(top);
    if (lane == 0) parts[warp] = make_float2(sum, top);
    __syncthreads();
    const float2 mine = lane < warps ? parts[lane] : make_float2(0, 0);
    sum = over_warp<Sum>(mine.x), top = over_warp<Max>(mine.y);
    if (blocks == 1) return;
    if (threadIdx.x == 0) of_block = make_float2(sum, top);
    cluster_barrier();
    const float2 other = lane < blocks ? load_of_block2(&of_block, lane) : make_float2(0, 0);
    sum = over_warp<Sum>(other.x), top = over_warp<Max>(other.y);
    cluster_arrive();
}

// One row a block or, as one multiprocessor takes long for a row, a cluster of blocks; a tile a warp at once.
// TAILS: whether `y` may have further summands.
template <bool BF16, int KEPT, bool TAILS> INLINE void pack(const ActsArgs& a) {
    const uint32_t blocks = cluster_blocks(), row = blockIdx.x / blocks, lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32 * blocks + blockIdx.x % blocks, warps = blockDim.x / 32 * blocks;
    auto load = [&](const float* from, uint32_t tile) { return load_chunk(from, a.cols, tile, lane); };
    // Weights depend on nothing, and the count of rows is no kernel's work.
    const Chunk norm = a.norm ? load(a.norm, warp) : Chunk{};
    const bool held = !a.rows || row < *a.rows;
    wait_for_last();
    let_next_start();
    if (!held) return;
    const size_t start = static_cast<size_t>(row) * a.cols;
    float squares = 0, top = 0;
    auto add = [&](Chunk& c, uint32_t tile) {
        const Chunk y = load(a.y + start, tile);
#pragma unroll
        for (int t = 0; t < 4; t++) c.v[t] = add2(c.v[t], y.v[t]);
        if constexpr (TAILS) {
#pragma unroll 1
            for (uint32_t p = 0; p < a.tails; p += TAILS_AHEAD) {
                Chunk z[TAILS_AHEAD] = {};
#pragma unroll
                for (int i = 0; i < TAILS_AHEAD; i++) {
                    if (p + i < a.tails) z[i] = load(a.y_tail + (p + i) * a.slab + start, tile);
                }
#pragma unroll
                for (int i = 0; i < TAILS_AHEAD; i++) {
#pragma unroll
                    for (int t = 0; t < 4; t++) c.v[t] = add2(c.v[t], z[i].v[t]);
                }
            }
        }
    };
    // What is summed over the row; the values become those before the factor of the norm.
    auto see = [&](Chunk& c, uint32_t tile, const Chunk& norm, bool first) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t at = chunk_column(tile, t, lane);
            if (first && a.x_out && at < a.cols) *reinterpret_cast<float2*>(a.x_out + start + at) = c.v[t];
            squares += c.v[t].x * c.v[t].x + c.v[t].y * c.v[t].y;
            if (a.norm) c.v[t] = make_float2(c.v[t].x * norm.v[t].x, c.v[t].y * norm.v[t].y);
            top = fmaxf(top, largest(c.v[t]));
        }
    };
    auto norm_of = [&](uint32_t tile) { return a.norm ? load(a.norm, tile) : Chunk{}; };
    // All loads before the first use.
    Chunk kept[KEPT];
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        if (n == 0 || warp + n * warps < a.k_tiles) kept[n] = load(a.x + start, warp + n * warps);
    }
    if (a.y) {
#pragma unroll
        for (int n = 0; n < KEPT; n++) {
            if (n == 0 || warp + n * warps < a.k_tiles) add(kept[n], warp + n * warps);
        }
    }
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        const uint32_t tile = warp + n * warps;
        if (tile < a.k_tiles) see(kept[n], tile, n == 0 ? norm : norm_of(tile), true);
    }
    auto again = [&](uint32_t tile, bool first) {
        Chunk c = load(a.x + start, tile);
        if (a.y) add(c, tile);
        see(c, tile, norm_of(tile), first);
        return c;
    };
    for (uint32_t tile = warp + KEPT * warps; tile < a.k_tiles; tile += warps) again(tile, true);
    over_row_both(squares, top, blocks);
    float factor = a.norm ? rsqrtf(squares / float(a.cols) + a.eps) : 1.0f;
    if (!BF16) {
        float scale;
        factor *= image_factor(top * factor, scale);
        if (warp == 0 && lane == 0) a.scale[row] = scale;
    }
    auto put = [&](const Chunk& c, uint32_t tile) {
        *reinterpret_cast<uint4*>(a.out + chunk_offset(row, tile, lane, a.groups)) = image_chunk<BF16>(c, factor);
    };
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        if (warp + n * warps < a.k_tiles) put(kept[n], warp + n * warps);
    }
    for (uint32_t tile = warp + KEPT * warps; tile < a.k_tiles; tile += warps) put(again(tile, false), tile);
    if (blocks > 1) cluster_wait();
}

KERNEL(FEW_THREADS, pack_rows_f16, ActsArgs) { pack<false, FEW_KEPT, false>(a); }
KERNEL(FEW_THREADS, pack_rows_bf16, ActsArgs) { pack<true, FEW_KEPT, false>(a); }
KERNEL(MANY_THREADS, pack_many_rows_f16, ActsArgs) { pack<false, MANY_KEPT, false>(a); }
KERNEL(MANY_THREADS, pack_many_rows_bf16, ActsArgs) { pack<true, MANY_KEPT, false>(a); }
KERNEL(PARTS_THREADS, pack_parts_f16, ActsArgs) { pack<false, PARTS_KEPT, true>(a); }
KERNEL(PARTS_THREADS, pack_parts_bf16, ActsArgs) { pack<true, PARTS_KEPT, true>(a); }

// Rows of up to 8 tokens to the int8 image, one row and some columns a block. The factor of a norm is left to the products:
// `scale` gets the sum of squares of each block's columns, [row][block].
KERNEL(FEW_PACK_THREADS, pack_few, ActsArgs) {
    const uint32_t row = blockIdx.x, i = blockIdx.y * FEW_PACK_THREADS + threadIdx.x;
    const bool inside = 8 * i < a.cols;
    const Float8 norm = a.norm && inside ? load8(a.norm, i) : Float8{};
    const bool held = row < *a.rows;
    wait_for_last();
    let_next_start();
    if (!held) return;
    const size_t start = static_cast<size_t>(row) * a.cols;
    float squares = 0;
    Float8 x = {};
    if (inside) {
        x = load8(a.x + start, i);
        if (a.y) add8(x, load8(a.y + start, i));
#pragma unroll 1
        for (uint32_t p = 0; p < a.tails; p += FEW_TAILS_AHEAD) {
            // All loads are under way at once, as there is no branch: beyond the last one, that one is loaded for nothing.
            Float8 z[FEW_TAILS_AHEAD];
#pragma unroll
            for (int n = 0; n < FEW_TAILS_AHEAD; n++) z[n] = load8(a.y_tail + min(p + n, a.tails - 1) * a.slab + start, i);
#pragma unroll
            for (int n = 0; n < FEW_TAILS_AHEAD; n++) {
                const float counts = p + n < a.tails ? 1.0f : 0.0f;
#pragma unroll
                for (int e = 0; e < 8; e++) x.v[e] += counts * z[n].v[e];
            }
        }
        if (a.x_out) store8(a.x_out + start, i, x);
        if (a.norm) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                squares += x.v[e] * x.v[e];
                x.v[e] *= norm.v[e];
            }
        }
    }
    // Whole warps are beyond the last tile.
    if (i < a.k_tiles * 32) put_few(x, row, i, a.out);
    if (!a.norm) return;
    squares = over_block<Sum>(squares);
    if (threadIdx.x == 0) a.scale[row * gridDim.y + blockIdx.y] = squares;
}

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
