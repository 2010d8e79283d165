// What the products of many rows share: how work is cut over blocks, and how parts of a sum come together.
//
// A UNIT is one k tile of a block of row tiles and a block of tokens. Blocks of threads get runs of units of even length,
// so that any matrix fills the device; the sums of one output block may then lie in several. Each writes its part, and
// the one that comes last adds them in the order of k: the same sum at every run.
#pragma once
#include "gate.cuh"
#include "fragments.cuh"

// Where the work of a block of threads begins and ends, and who else has parts. The first `more` blocks have a unit more.
struct Cut {
    uint32_t grid, each, more;  // every block below `grid` has work
    // `least` units a block: the fewer parts a sum has, the faster they are added up.
    INLINE Cut(uint32_t units, uint32_t least)
        : grid(min((units + least - 1) / least, gridDim.x)), each(units / grid), more(units % grid) {}
    INLINE uint32_t begin(uint32_t block) const { return min(block, grid) * each + min(block, more); }
    // The block that has a unit.
    INLINE uint32_t owner(uint32_t unit) const {
        const uint32_t longer = more * (each + 1);
        return unit < longer ? unit / (each + 1) : more + (unit - longer) / each;
    }
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
          cut(row_blocks(args, ROW_TILES, GATED) * token_blocks * args.k_tiles, NT > 8 ? 3 : NT > 4 ? 2 : 1) {}
    // Row tile `i` of a block's, or null beyond the matrix.
    INLINE const uint8_t* tile(const RowBlock& at, uint32_t i, uint32_t k) const {
        const Segment& s = a.seg[GATED ? i % 2 : at.segment];
        const uint32_t row_tile = at.first + (GATED ? i / 2 : i);
        return row_tile < s.row_tiles ? s.tiles + (static_cast<size_t>(row_tile) * a.k_tiles + k) * TB : nullptr;
    }
    // Factors of the block's tokens, token lane + 32 * i of them in [i].
    static constexpr int FACTORS = (8 * NT + 31) / 32;
    INLINE void load_factors(uint32_t tokens, float (&factors)[FACTORS]) const {
        const uint32_t count = __ldg(a.tokens);
#pragma unroll
        for (int i = 0; i < FACTORS; i++) {
            const uint32_t token = tokens * 8 * NT + threadIdx.x % 32 + 32 * i;
            factors[i] = (a.scale && !T::BF16 && token < count ? __ldcg(a.scale + token) : 1.0f) / T::SCALE;
        }
    }
    // Writes group n of tokens. Element e of a fragment: row (e / 2) * 8 + lane / 4 of the tile, token e % 2 + 2 * (lane % 4)
    // of the group. Every lane calls.
    INLINE void write(const RowBlock& at, uint32_t tokens, int warp, int n, float factors, const float (&one)[4],
                      const float (&two)[4]) const {
        const uint32_t lane = threadIdx.x % 32, count = __ldg(a.tokens), first = (tokens * NT + n) * 8 + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t token = first + j;
            const float factor = __shfl_sync(WARP, factors, 8 * (n % 4) + lane % 4 * 2 + j);
            if (token >= count) continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float x = one[2 * r + j] * factor, y = two[2 * r + j] * factor;
                const uint32_t in_tile = lane / 4 + 8 * r;
                if constexpr (GATED) {
                    const uint32_t row = (at.first + warp) * TILE_ROWS + in_tile;
                    if (row >= a.seg[0].rows) continue;
                    const float gate = a.seg[0].bias ? x + a.seg[0].bias[row] : x;
                    const float up = a.seg[1].bias ? y + a.seg[1].bias[row] : y;
                    a.seg[0].out[static_cast<size_t>(token) * a.seg[0].rows + row] = activate(a.gate, gate) * up;
                } else {
                    const uint32_t row = (at.first + warp * MT) * TILE_ROWS + in_tile;
                    write_one(at.segment, token, row, x);
                    write_one(at.segment, token, row + TILE_ROWS, y);
                }
            }
        }
    }
    INLINE void write_one(int segment, uint32_t token, uint32_t row, float v) const {
        const Segment& s = a.seg[segment];
        if (row >= s.rows) return;
        const size_t o = static_cast<size_t>(token) * s.rows + row;
        if (s.bias) v += s.bias[row];
        if (segment == 0 && a.residual) v += __ldcg(a.residual + o);
        s.out[o] = v;
    }

    // A warp's part of a sum in memory: [2 * block + slot][warp][vector][lane] of 16 bytes. A block's part of the output where
    // its own work begins is in slot 0, any other in slot 1.
    INLINE float4* part_of(uint32_t block, uint32_t first_unit, int warp) const {
        const uint32_t slot = cut.begin(block) < first_unit ? 1 : 0;
        return reinterpret_cast<float4*>(a.partial) + ((2 * block + slot) * WARPS + warp) * (MT * NT * 32) + threadIdx.x % 32;
    }
    // The end of an output block in this block's work. Alone, it writes the sums. Else they go to memory, and the warp that
    // comes last of all blocks' adds up all parts in order: out of memory, so that registers are free to load ahead.
    INLINE void finish(uint32_t unit, int warp, float (&sum)[MT][NT][4]) const {
        const uint32_t block = unit / a.k_tiles, first = block * a.k_tiles, tokens = block % token_blocks;
        const uint32_t from = cut.owner(first), to = cut.owner(first + a.k_tiles - 1);
        const RowBlock at = find_row_block(a, block / token_blocks, ROW_TILES);
        if (from == to) {
            float factors[FACTORS];
            load_factors(tokens, factors);
#pragma unroll
            for (int n = 0; n < NT; n++) write(at, tokens, warp, n, factors[n / 4], sum[0][n], sum[1][n]);
        } else {
            float4* mine = part_of(blockIdx.x, first, warp);
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const float(&v)[4] = sum[m][n];
                    __stcg(mine + 32 * (MT * n + m), make_float4(v[0], v[1], v[2], v[3]));
                }
            }
            if (comes_last(a.counters + block * WARPS + warp, to - from + 1)) add_parts(at, tokens, first, from, to, warp);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int e = 0; e < 4; e++) sum[m][n][e] = 0;
            }
        }
    }
    // Whether this warp is the last of `n` to come; then it sees what the others wrote, and the counter is zero again.
    INLINE static bool comes_last(uint32_t* counter, uint32_t n) {
        see_others();
        __syncwarp();
        uint32_t arrived = 0;
        if (threadIdx.x % 32 == 0) {
            arrived = arrive_at(counter);
            if (arrived == n) *counter = 0;
        }
        see_others();
        return __shfl_sync(WARP, arrived, 0) == n;
    }
    INLINE void add_parts(const RowBlock& at, uint32_t tokens, uint32_t first, uint32_t from, uint32_t to, int warp) const {
        constexpr int TOGETHER = NT < 4 ? NT : 4, V = MT * TOGETHER, AHEAD = 3;
        float factors[FACTORS];
        load_factors(tokens, factors);
#pragma unroll 1
        for (int n = 0; n < NT; n += TOGETHER) {
            float s[V][4] = {};
#pragma unroll 1
            for (uint32_t block = from; block <= to; block += AHEAD) {
                float4 v[AHEAD][V] = {};
#pragma unroll
                for (int b = 0; b < AHEAD; b++) {
                    if (block + b > to) continue;
                    const float4* p = part_of(block + b, first, warp) + 32 * MT * n;
#pragma unroll
                    for (int i = 0; i < V; i++) v[b][i] = __ldcg(p + 32 * i);
                }
#pragma unroll
                for (int b = 0; b < AHEAD; b++) {
#pragma unroll
                    for (int i = 0; i < V; i++) {
                        s[i][0] += v[b][i].x, s[i][1] += v[b][i].y, s[i][2] += v[b][i].z, s[i][3] += v[b][i].w;
                    }
                }
            }
            float mine = factors[0];
#pragma unroll
            for (int i = 1; i < FACTORS; i++) mine = n / 4 == i ? factors[i] : mine;
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) write(at, tokens, warp, n + i, mine, s[MT * i], s[MT * i + 1]);
        }
    }
};
