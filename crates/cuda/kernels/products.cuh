// What the products of many rows share: how work is cut over blocks, and how parts of a sum come together.
//
// A UNIT is one k tile of a block of row tiles and a block of tokens. Blocks of threads get runs of units of even length,
// so that any matrix fills the device; the sums of one output block may then lie in several. Where runs are longer than an
// output block, two may share one: the run that begins with its last columns leaves their sums in memory, and the run
// that ends with its first columns, much later, goes on from there. Where runs are shorter, each writes its part, and the
// one that comes last adds them in the order of k; or all parts are left to a reader that adds them. All give the same sum
// every time.
#pragma once
#include "gate.cuh"
#include "fragments.cuh"

// Where runs begin and end, and who else has parts. The first `more` runs have a unit more.
struct Cut {
    uint32_t grid, each, more;  // runs; blocks beyond have no work
    // `least` units a run: the fewer parts a sum has, the faster they are added up.
    // At most `most` runs.
    INLINE Cut(uint32_t units, uint32_t least, uint32_t most)
        : grid(min((units + least - 1) / least, most)), each(units / grid), more(units % grid) {}
    INLINE uint32_t begin(uint32_t run) const { return min(run, grid) * each + min(run, more); }
    // The run that has a unit.
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

// The tokens of a step, in blocks of NT groups of 8.
template <int NT> struct StepTokens {
    using Args = ProductArgs;
    static constexpr bool LISTED = false;

    const ProductArgs& a;
    const uint32_t blocks;

    // The count is no kernel's work, so it can be read early.
    INLINE explicit StepTokens(const Args& args) : a(args), blocks((__ldg(args.tokens) + 8 * NT - 1) / (8 * NT)) {}
    // The row of a block's first token, a multiple of 8, and the row after the last one.
    INLINE uint32_t first(uint32_t block) const { return block * 8 * NT; }
    INLINE uint32_t end(uint32_t) const { return __ldg(a.tokens); }
    // The matrix that a block's tokens are multiplied with.
    INLINE const uint8_t* matrix(const Segment& s, uint32_t) const { return s.tiles; }
    // Where its biases begin.
    INLINE uint32_t first_bias(const Segment&, uint32_t) const { return 0; }
    // Calls `f` with the activation of gated products.
    template <class F> INLINE void with_activation(F f) const {
        if (is_swish(a.gate)) f(Swish(a.gate));
        else f(OtherGate{a.gate});
    }
};
// Tokens sorted by expert, each with the matrix of its own. A kernel before lists the blocks.
template <int NT> struct ExpertTokens {
    using Args = ExpertProductArgs;
    static constexpr bool LISTED = true;

    const ProductArgs& a;
    const ExpertProductArgs& e;
    const uint32_t blocks;

    INLINE explicit ExpertTokens(const Args& args) : a(args.product), e(args), blocks(*args.blocks) {}
    INLINE uint32_t first(uint32_t block) const { return e.list[block].first; }
    INLINE uint32_t end(uint32_t block) const { return e.list[block].end; }
    INLINE const uint8_t* matrix(const Segment& s, uint32_t block) const { return s.tiles + e.list[block].expert * e.expert_bytes; }
    INLINE uint32_t first_bias(const Segment& s, uint32_t block) const { return s.bias ? e.list[block].expert * s.rows : 0; }
    template <class F> INLINE void with_activation(F f) const {
        if (e.limit > 0) f(Clamped{e.alpha, e.limit});
        else f(Swish(a.gate));
    }
};

// A block's output: WARPS x MT row tiles times NT groups of 8 tokens. Warp w has row tiles MT * w on.
// GATED: row tiles of gate and of up take turns. With MT = 2 a warp has one of each; with MT = 1 two neighbours share the
// two: rows 0..7 of its tile are the same eight of gate as rows 8..15 are of up.
template <class T, int NT, bool GATED, int WARPS, int MT, template <int> class TOKENS> struct Tiled {
    static constexpr int ROW_TILES = MT * WARPS / (GATED ? 2 : 1);  // of one matrix
    using Tokens = TOKENS<NT>;

    const Tokens list;
    const ProductArgs& a;
    // Groups of blocks of tokens, each with runs of its own, which read the same weights at the same time: so these are read
    // from memory once, and by the other groups from the cache.
    uint32_t groups, token_blocks;  // and blocks of tokens of a group
    Cut cut;                        // of a group
    uint32_t group, own;            // of this block of threads: group, and run in it

    // A run waits for the next one at most, so that one comes from a block of threads that started before.
    INLINE explicit Tiled(const typename Tokens::Args& args)
        : list(args), a(list.a), groups(Tokens::LISTED ? 1 : groups_of(list.blocks)), token_blocks(list.blocks / groups),
          cut(row_blocks(a, ROW_TILES, GATED) * token_blocks * a.k_tiles, NT > 8 ? 3 : NT > 4 ? 2 : 1, gridDim.x / groups),
          group(blockIdx.x % groups), own(blockIdx.x / groups < cut.grid ? cut.grid - 1 - blockIdx.x / groups : cut.grid) {}
    // As many groups as divide the blocks of tokens and leave no more than one in 50 blocks of threads without work.
    INLINE static uint32_t groups_of(uint32_t blocks) {
        uint32_t groups = min(blocks, gridDim.x);
        while (blocks % groups != 0 || gridDim.x % groups * 50 > gridDim.x) groups--;
        return groups;
    }
    INLINE uint32_t begin() const { return cut.begin(own); }
    INLINE uint32_t end() const { return cut.begin(own + 1); }
    // The rows and the block of tokens of a block of outputs.
    INLINE RowBlock rows_of(uint32_t block) const { return find_row_block(a, block / token_blocks, ROW_TILES); }
    INLINE uint32_t tokens_of(uint32_t block) const { return group * token_blocks + block % token_blocks; }
    // Row tile `i` of a block of outputs, whose rows are `at`, of tiles of so many bytes; or null beyond the matrix.
    INLINE const uint8_t* tile(uint32_t block, const RowBlock& at, uint32_t i, uint32_t k, uint32_t tile_bytes) const {
        const Segment& s = a.seg[GATED ? i % 2 : at.segment];
        const uint32_t row_tile = at.first + (GATED ? i / 2 : i);
        if (row_tile >= s.row_tiles) return nullptr;
        return list.matrix(s, tokens_of(block)) + (static_cast<size_t>(row_tile) * a.k_tiles + k) * tile_bytes;
    }
    // Factors of the block's tokens, token lane + 32 * i of them in [i].
    static constexpr int FACTORS = (8 * NT + 31) / 32;
    INLINE void load_factors(uint32_t tokens, float (&factors)[FACTORS]) const {
        const uint32_t first = list.first(tokens), end = list.end(tokens);
#pragma unroll
        for (int i = 0; i < FACTORS; i++) {
            const uint32_t token = first + threadIdx.x % 32 + 32 * i;
            factors[i] = (a.scale && !T::BF16 && token < end ? __ldcg(a.scale + token) : 1.0f) * a.factor;
        }
    }
    // Rows of a lane's outputs are 8 apart.
    static constexpr int OUTS = GATED ? MT : 2 * MT;
    // Where a lane's outputs of the block's first tokens go. Worked out once, since code that is run once costs its fetching.
    struct Output {
        float* at;
        uint32_t rows, token, end;
        float bias[OUTS], up_bias[OUTS];
        bool inside[OUTS];
    };
    // `part`: of results that are left in parts.
    INLINE Output output(const RowBlock& at, uint32_t tokens, int warp, uint32_t part = 0) const {
        const Segment& s = a.seg[GATED ? 0 : at.segment];
        const uint32_t lane = threadIdx.x % 32;
        uint32_t row = (at.first + (GATED ? warp * MT / 2 : warp * MT)) * TILE_ROWS + lane / 4;
        if (GATED && MT == 1) row += warp % 2 * 8;
        Output o;
        o.rows = s.rows, o.token = list.first(tokens) + lane % 4 * 2, o.end = list.end(tokens);
        const uint32_t bias = row + list.first_bias(s, tokens), up_bias = GATED ? row + list.first_bias(a.seg[1], tokens) : 0;
        float* const to = part == 0 ? s.out : s.tail + (part - 1) * a.slab;
        o.at = to + static_cast<size_t>(o.token) * s.rows + row;
#pragma unroll
        for (int i = 0; i < OUTS; i++) {
            o.inside[i] = row + 8 * i < s.rows;
            o.bias[i] = o.inside[i] && s.bias && part == 0 ? __ldg(s.bias + bias + 8 * i) : 0.0f;
            o.up_bias[i] = GATED && o.inside[i] && a.seg[1].bias ? __ldg(a.seg[1].bias + up_bias + 8 * i) : 0.0f;
        }
        return o;
    }
    // Writes group n of tokens: `v(m)` are the fragments of the warp's row tiles. Element e of a fragment: row
    // (e / 2) * 8 + lane / 4 of the tile, token e % 2 + 2 * (lane % 4) of the group. Every lane calls.
    template <class V, class F> INLINE void write(const Output& o, int n, float factors, V v, F activation) const {
        float* at = o.at + static_cast<size_t>(8 * n) * o.rows;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float factor = __shfl_sync(WARP, factors, 8 * (n % 4) + threadIdx.x % 4 * 2 + j);
            const bool held = o.token + 8 * n + j < o.end;
#pragma unroll
            for (int i = 0; i < OUTS; i++) {
                float x;
                if constexpr (GATED) {
                    const float gate = MT == 1 ? v(0)[j] : v(0)[2 * i + j], up = MT == 1 ? v(0)[2 + j] : v(MT - 1)[2 * i + j];
                    x = activation(gate * factor + o.bias[i]) * activation.other(up * factor + o.up_bias[i]);
                } else {
                    x = v(i / 2)[i % 2 * 2 + j] * factor + o.bias[i];
                }
                if (held && o.inside[i]) at[8 * i] = x;
            }
            at += o.rows;
        }
    }
    // Calls `f` with the activation, or with none.
    template <class F> INLINE void with_activation(F f) const {
        if constexpr (GATED) list.with_activation(f);
        else f(nullptr);
    }

    // A warp's part of a sum in memory: [2 * run + slot][group][warp][vector][lane] of 16 bytes. A run's part of the output where it
    // begins is in slot 0, any other in slot 1.
    INLINE float4* part_of(uint32_t run, uint32_t first_unit, int warp) const {
        const uint32_t slot = cut.begin(run) < first_unit ? 1 : 0, part = (2 * run + slot) * groups + group;
        return reinterpret_cast<float4*>(a.partial) + (part * WARPS + warp) * (MT * NT * 32) + threadIdx.x % 32;
    }
    // Whether runs are so long that no more than two share an output block.
    INLINE bool in_pairs() const { return cut.each >= a.k_tiles; }
    INLINE uint32_t* counter(uint32_t block, int warp) const { return a.counters + (block * groups + group) * WARPS + warp; }
    // The sums with which a run begins a block of outputs: zeros, or those that the next run has left.
    INLINE void start(uint32_t block, uint32_t begin, uint32_t end, int warp, float (&sum)[MT][NT][4]) const {
        const uint32_t first = block * a.k_tiles;
        const bool goes_on = in_pairs() && begin <= first && end < first + a.k_tiles;
        const float4* left = nullptr;
        if (goes_on) {
            if (threadIdx.x % 32 == 0) {
                uint32_t* flag = counter(block, warp);
                wait_until_set(flag);
                *flag = 0;
            }
            __syncwarp();
            left = part_of(own + 1, first, warp);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const float4 v = goes_on ? __ldcg(left + 32 * (MT * n + m)) : make_float4(0, 0, 0, 0);
                sum[m][n][0] = v.x, sum[m][n][1] = v.y, sum[m][n][2] = v.z, sum[m][n][3] = v.w;
            }
        }
    }
    INLINE void write_all(const Output& o, uint32_t tokens, const float (&sum)[MT][NT][4]) const {
        float factors[FACTORS];
        load_factors(tokens, factors);
        with_activation([&](auto activation) {
#pragma unroll
            for (int n = 0; n < NT; n++) write(o, n, factors[n / 4], [&](int m) { return sum[m][n]; }, activation);
        });
    }
    // The end of a block of outputs in the run from `begin` to `end`. With all sums it writes them. Else they go to memory, and
    // where more than two runs share the block, the warp that comes last of theirs adds up all parts in order: out of memory,
    // so that registers are free to load ahead.
    INLINE void finish(uint32_t block, uint32_t begin, uint32_t end, int warp, const float (&sum)[MT][NT][4]) const {
        const uint32_t first = block * a.k_tiles, tokens = tokens_of(block);
        const RowBlock at = rows_of(block);
        if (!GATED && a.parts > 0) {
            const uint32_t part = own - cut.owner(first);
            write_all(output(at, tokens, warp, part), tokens, sum);
            // Blocks that fewer runs share have parts of zeros.
            const float nothing[MT][NT][4] = {};
            if (first + a.k_tiles <= end) {
#pragma unroll 1
                for (uint32_t p = part + 1; p < a.parts; p++) write_all(output(at, tokens, warp, p), tokens, nothing);
            }
        } else if (begin <= first && (in_pairs() || first + a.k_tiles <= end)) {
            write_all(output(at, tokens, warp), tokens, sum);
        } else {
            float4* mine = part_of(own, first, warp);
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const float(&v)[4] = sum[m][n];
                    __stcg(mine + 32 * (MT * n + m), make_float4(v[0], v[1], v[2], v[3]));
                }
            }
            if (in_pairs()) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) set(counter(block, warp));
                return;
            }
            const uint32_t from = cut.owner(first), to = cut.owner(first + a.k_tiles - 1);
            if (comes_last(counter(block, warp), to - from + 1)) add_parts(at, tokens, first, from, to, warp);
        }
    }
    // Whether this warp is the last of `n` to come; then it sees what the others wrote, and the counter is zero again.
    INLINE static bool comes_last(uint32_t* counter, uint32_t n) {
        __syncwarp();
        uint32_t arrived = 0;
        if (threadIdx.x % 32 == 0) {
            arrived = arrive_at(counter);
            if (arrived == n) *counter = 0;
        }
        return __shfl_sync(WARP, arrived, 0) == n;
    }
    INLINE void add_parts(const RowBlock& at, uint32_t tokens, uint32_t first, uint32_t from, uint32_t to, int warp) const {
        constexpr int MOST = NT == 8 ? 4 : 8 / MT, TOGETHER = NT < MOST ? NT : MOST, V = MT * TOGETHER, AHEAD = V < 3 ? 8 : V < 8 ? 6 : 3;
        float factors[FACTORS];
        load_factors(tokens, factors);
        const Output o = output(at, tokens, warp);
#pragma unroll 1
        for (int n = 0; n < NT; n += TOGETHER) {
            float s[TOGETHER][MT][4] = {};
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
                        float(&t)[4] = s[i / MT][i % MT];
                        t[0] += v[b][i].x, t[1] += v[b][i].y, t[2] += v[b][i].z, t[3] += v[b][i].w;
                    }
                }
            }
            with_activation([&](auto activation) {
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    float mine = factors[0];
#pragma unroll
                    for (int f = 1; f < FACTORS; f++) mine = (n + i) / 4 == f ? factors[f] : mine;
                    write(o, n + i, mine, [&](int m) { return s[i][m]; }, activation);
                }
            });
        }
    }
};
