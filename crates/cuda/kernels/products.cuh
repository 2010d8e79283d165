// What the products of many rows share: how work is cut over blocks, and how parts of a sum come together.
//
// A UNIT is one k tile of a block of row tiles and a block of tokens. Blocks of threads get runs of units of even length,
// so that any matrix fills the device; the sums of one output block may then lie in several. Each writes its part, and
// the one that comes last adds them in the order of k: the same sum at every run.
#pragma once
#include "gate.cuh"
#include "fragments.cuh"

// Where the work of a block of threads begins and ends, and who else has parts.
struct Cut {
    uint32_t units, grid;  // every block below `grid` has work
    INLINE Cut(uint32_t count) : units(count), grid(min(count, gridDim.x)) {}
    INLINE uint32_t begin(uint32_t block) const { return static_cast<uint64_t>(units) * min(block, grid) / grid; }
    // The block that has a unit.
    INLINE uint32_t owner(uint32_t unit) const { return ((static_cast<uint64_t>(unit) + 1) * grid - 1) / units; }
};

// Output blocks of all segments in order: which segment, and the first row tile in it.
struct RowBlock {
    int segment;
    uint32_t first;
};
INLINE uint32_t row_blocks_of(uint32_t row_tiles, uint32_t each) { return (row_tiles + each - 1) / each; }
INLINE uint32_t row_blocks(const ProductArgs& a, uint32_t each, bool gated) {
    if (gated) return row_blocks_of(a.seg[0].row_tiles, each);
    uint32_t n = 0;
#pragma unroll
    for (int s = 0; s < 3; s++) {
        if (s < static_cast<int>(a.segs)) n += row_blocks_of(a.seg[s].row_tiles, each);
    }
    return n;
}
INLINE RowBlock find_row_block(const ProductArgs& a, uint32_t block, uint32_t each) {
    RowBlock r = {0, block};
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint32_t n = row_blocks_of(a.seg[s].row_tiles, each);
        if (r.segment == s && s + 1 < static_cast<int>(a.segs) && r.first >= n) {
            r.segment = s + 1;
            r.first -= n;
        }
    }
    r.first *= each;
    return r;
}

// Adds a part of a sum to those of other blocks of threads. `values` are this lane's; every lane of the warp calls.
// Returns whether this warp came last; its values are then the whole sum.
// Layout of partial: [2 * block + slot][warp of the block][vector][lane] float4.
template <int VECTORS>
INLINE bool join_parts(float4 (&values)[VECTORS], float* partial, uint32_t* counter, const Cut& cut, uint32_t first_unit,
                       uint32_t last_unit, uint32_t warp, uint32_t warps) {
    const uint32_t lane = threadIdx.x % 32, from = cut.owner(first_unit), to = cut.owner(last_unit);
    if (from == to) return true;
    // A block's part of the output where its own work begins is in slot 0, any other in slot 1.
    auto place = [&](uint32_t block) {
        const uint32_t slot = cut.begin(block) < first_unit ? 1 : 0;
        return reinterpret_cast<float4*>(partial) + (static_cast<size_t>(2 * block + slot) * warps + warp) * VECTORS * 32 + lane;
    };
    float4* mine = place(blockIdx.x);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) __stcg(mine + 32 * i, values[i]);
    __threadfence();
    __syncwarp();
    uint32_t arrived = 0;
    if (lane == 0) arrived = atomicAdd(counter, 1) + 1;
    arrived = __shfl_sync(WARP, arrived, 0);
    if (arrived != to - from + 1) return false;
    __threadfence();
    if (lane == 0) *counter = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) values[i] = __ldcg(place(from) + 32 * i);
    for (uint32_t block = from + 1; block <= to; block++) {
        const float4* p = place(block);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const float4 v = __ldcg(p + 32 * i);
            values[i].x += v.x, values[i].y += v.y, values[i].z += v.z, values[i].w += v.w;
        }
    }
    return true;
}

// A block's output: WARPS x 2 row tiles times NT groups of 8 tokens. Warps have row tiles 2w and 2w + 1.
// GATED: a warp's two row tiles are one of gate and one of up.
template <class T, int NT, bool GATED, int WARPS> struct Tiled {
    static constexpr int MT = 2, TB = TILE_BYTES<T>;
    static constexpr int ROW_TILES = GATED ? WARPS : MT * WARPS;  // of one matrix

    const ProductArgs& a;
    uint32_t token_blocks;
    Cut cut;

    // The count of tokens is no kernel's work, so it can be read early.
    INLINE explicit Tiled(const ProductArgs& args)
        : a(args), token_blocks((__ldg(args.tokens) + 8 * NT - 1) / (8 * NT)),
          cut(row_blocks(args, ROW_TILES, GATED) * token_blocks * args.k_tiles) {}
    // Row tile `i` of a block's, or null beyond the matrix.
    INLINE const uint8_t* tile(const RowBlock& at, uint32_t i, uint32_t k) const {
        const Segment& s = a.seg[GATED ? i % 2 : at.segment];
        const uint32_t row_tile = at.first + (GATED ? i / 2 : i);
        return row_tile < s.row_tiles ? s.tiles + (static_cast<size_t>(row_tile) * a.k_tiles + k) * TB : nullptr;
    }
    // Element e of a fragment: row (e / 2) * 8 + lane / 4 of the tile, token e % 2 + 2 * (lane % 4) of the group.
    INLINE void write(const RowBlock& at, uint32_t tokens, int warp, int lane, float (&sum)[MT][NT][4]) const {
        const uint32_t count = __ldg(a.tokens);
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t token = (tokens * NT + n) * 8 + lane % 4 * 2 + e % 2;
                if (token >= count) continue;
                const float factor = (a.scale && !T::BF16 ? __ldcg(a.scale + token) : 1.0f) / T::SCALE;
                if constexpr (GATED) {
                    const uint32_t row = (at.first + warp) * TILE_ROWS + lane / 4 + e / 2 * 8;
                    if (row >= a.seg[0].rows) continue;
                    float gate = sum[0][n][e] * factor, up = sum[1][n][e] * factor;
                    if (a.seg[0].bias) gate += a.seg[0].bias[row];
                    if (a.seg[1].bias) up += a.seg[1].bias[row];
                    a.seg[0].out[static_cast<size_t>(token) * a.seg[0].rows + row] = activate(a.gate, gate) * up;
                } else {
                    const Segment& s = a.seg[at.segment];
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const uint32_t row = (at.first + warp * MT + m) * TILE_ROWS + lane / 4 + e / 2 * 8;
                        if (row >= s.rows) continue;
                        const size_t o = static_cast<size_t>(token) * s.rows + row;
                        float v = sum[m][n][e] * factor;
                        if (s.bias) v += s.bias[row];
                        if (at.segment == 0 && a.residual) v += __ldcg(a.residual + o);
                        s.out[o] = v;
                    }
                }
            }
        }
    }
    // The end of an output block in this block's work: its sum is written by who completes it, and starts anew.
    INLINE void finish(uint32_t unit, int warp, int lane, float (&sum)[MT][NT][4]) const {
        const uint32_t block = unit / a.k_tiles, first = block * a.k_tiles;
        uint32_t* counter = a.counters + block * WARPS + warp;
        auto& parts = reinterpret_cast<float4(&)[MT * NT]>(sum);
        if (join_parts(parts, a.partial, counter, cut, first, first + a.k_tiles - 1, warp, WARPS)) {
            write(find_row_block(a, block / token_blocks, ROW_TILES), block % token_blocks, warp, lane, sum);
        }
#pragma unroll
        for (int i = 0; i < MT * NT; i++) parts[i] = make_float4(0, 0, 0, 0);
    }
};
