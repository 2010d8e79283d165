// Large products of up to 8 tokens with tiles, in whole numbers: mat-vecs of several rows at once.
//
// Activations are int8 with a scale for each 32 columns (acts.cuh), as many as have one scale of Q4_K and Q5_K: so one
// instruction of the tensor cores multiplies 32 columns of 16 rows with 8 tokens (of Q6_K, which has scales for 16, two do), and
// the sums that it starts with make floats of its results. That takes less than turning codes to f16.
//
// As in matvec.cuh a block has 16 warps and a run of tiles, which they take in turn, each with the next ones in registers. A
// tile goes from there through a room of the warp in shared memory, where `ldmatrix` gives each lane one word of the chunks of
// all four lanes of a row, so that the columns of one chunk come together. A block has whole rows of tiles of a part of the
// columns, whose activations are all in shared memory; with several parts results are left in as many summands. Products of few
// columns can add their results to a row and leave the int8 image of its norm: 32 rows have one scale, so a block has two row
// tiles of them.
#pragma once
#include "acts.cuh"
#include "fragments.cuh"
#include "matvec.cuh"

// Sums of whole numbers start at these bits: of a float that is 3 * 2^22, to which adding a number below 2^22 adds the same.
constexpr uint32_t WHOLE_START = 0x4b400000u;
constexpr float WHOLE_OFFSET = 12582912.0f;

// Adds whole sums of 16 rows and 8 tokens, `d` times scales of rows g and g + 8 and of tokens 2t and 2t + 1. Scales of rows have
// at most 19 bits, so their products with the offset are exact, and the first step rounds once.
INLINE void add_whole(float (&sum)[4], const uint32_t (&d)[4], float upper, float lower, float2 tokens) {
    const float offset = -WHOLE_OFFSET * upper, other = -WHOLE_OFFSET * lower;
    sum[0] += fmaf(__uint_as_float(d[0]), upper, offset) * tokens.x;
    sum[1] += fmaf(__uint_as_float(d[1]), upper, offset) * tokens.y;
    sum[2] += fmaf(__uint_as_float(d[2]), lower, other) * tokens.x;
    sum[3] += fmaf(__uint_as_float(d[3]), lower, other) * tokens.y;
}

// A warp's room begins with the codes of a tile. What differs between types:
//   BYTES     of the room
//   Side      what a lane keeps of a tile beside the room
//   put       a tile from registers to the room
//   multiply  the products of the tile in the room with 8 tokens to the sums of a fragment: of rows g and g + 8, tokens 2t and
//             2t + 1
template <class T> struct Whole;

template <class R> INLINE void put_codes(const R& o, uint8_t* room, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) reinterpret_cast<uint4*>(room)[32 * i + chunk_of(lane)] = o.w[i];
}
// Calls `f(c, words, b, tokens)` for the chunk of each lane c of a row: words [half][row] of the codes, activations
// [half][quartets 4i on], and their scales [half][tokens 2t, 2t + 1].
template <class F> INLINE void for_chunks(const uint8_t* room, const uint8_t* acts, int lane, F f) {
    // What this lane names to ldmatrix: chunks of row lane % 8, then of that + 8, in the first half, then in the second.
    const uint32_t codes = shared_address(room) + 1024 * (lane / 8 % 2) + 512 * (lane / 16);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t words[4], b[4];
        load_matrices(codes + 16 * chunk_of(lane % 8 * 4 + c), words);
        load_matrices(shared_address(acts) + 512 * c + 16 * lane, b);
        const float4 x = reinterpret_cast<const float4*>(acts + FEW_SCALES)[4 * c + lane % 4];
        const float2 tokens[2] = {make_float2(x.x, x.y), make_float2(x.z, x.w)};
        f(c, words, b, tokens);
    }
}

// Q4_K and Q5_K, whose scales and minimums are in registers x[0..4].
//   FIFTHS  whether codes have fifth bits, in x[4..8]
template <class T, bool FIFTHS> struct WholeAffine {
    static constexpr int SCALES = 2048, BITS = 2560, BYTES = BITS + (FIFTHS ? 512 : 0);
    // Minimums of a lane's columns, [half][row], and what those of rows g and g + 8 are multiplied by.
    struct Side {
        float m[4], factor[2];
    };
    template <class R> INLINE static void put(const R& o, uint8_t* room, int lane, Side& side) {
        put_codes(o, room, lane);
        if constexpr (FIFTHS) reinterpret_cast<uint4*>(room + BITS)[chunk_of(lane)] = make_uint4(o.x[4], o.x[5], o.x[6], o.x[7]);
        uint32_t scales, mins;
        scales6(o.x[0], o.x[1], scales, mins);
        float s[4];  // [half][row]
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int half = i / 2, r = i % 2;
            s[i] = low_f16(o.x[2 + r]) * byte_value(scales, 2 * r + half);
            side.m[i] = byte_value(mins, 2 * r + half);
        }
        side.factor[0] = high_f16(o.x[2]), side.factor[1] = high_f16(o.x[3]);
        reinterpret_cast<float4*>(room + SCALES)[chunk_of(lane)] = make_float4(s[0], s[1], s[2], s[3]);
    }
    INLINE static void multiply(const uint8_t* room, const Side& side, const uint8_t* acts, int lane, float (&sum)[4]) {
        {
            // Minimums are whole, and sums of activations come in two numbers of 11 bits.
            const float4 s = reinterpret_cast<const float4*>(acts + FEW_SUMS)[lane];
            float product[4] = {0, 0, 0, 0};
            mma_tf32(product, side.m[0], side.m[1], side.m[2], side.m[3], s.x, s.z);
            mma_tf32(product, side.m[0], side.m[1], side.m[2], side.m[3], s.y, s.w);
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] -= side.factor[i / 2] * product[i];
        }
        for_chunks(room, acts, lane, [&](int c, const uint32_t (&words)[4], const uint32_t (&b)[4], const float2 (&tokens)[2]) {
            const int chunk = chunk_of((lane & ~3) | c);
            const float4 s = reinterpret_cast<const float4*>(room + SCALES)[chunk];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t a[4], d[4];  // [quartets t, 4 + t][row]
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t w = words[2 * half + r];
                    a[r] = w & LOW4, a[2 + r] = w >> 4 & LOW4;
                    if constexpr (FIFTHS) {
                        const uint32_t bits = shared4(room + BITS, 4 * chunk + 2 * r + half) >> lane % 4;
                        a[r] |= bits << 4 & 0x10101010u, a[2 + r] |= bits & 0x10101010u;
                    }
                }
                mma_s8(d, a[0], a[1], a[2], a[3], b[2 * half], b[2 * half + 1], WHOLE_START);
                add_whole(sum, d, half == 0 ? s.x : s.z, half == 0 ? s.y : s.w, tokens[half]);
            }
        });
    }
};
template <> struct Whole<TileQ4_K> : WholeAffine<TileQ4_K, false> {};
template <> struct Whole<TileQ5_K> : WholeAffine<TileQ5_K, true> {};

// Codes of 6 bits in the high ones of bytes, less 32: four times what they stand for, which scales make up for.
template <> struct Whole<TileQ6_K> {
    static constexpr int BITS = 2048, SCALES = 3072, BYTES = 4096;
    struct Side {};
    template <class R> INLINE static void put(const R& o, uint8_t* room, int lane, Side&) {
        put_codes(o, room, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t* h = o.x + 4 + 4 * r;
            // The higher bit of each pair turned: that takes 32 away.
            constexpr uint32_t TURNED = 0xaaaaaaaau;
            reinterpret_cast<uint4*>(room + BITS)[32 * r + chunk_of(lane)] = make_uint4(h[0] ^ TURNED, h[1] ^ TURNED, h[2] ^ TURNED, h[3] ^ TURNED);
            const float d = 0.25f * low_f16(o.x[r]);
            float s[4];  // of 16 columns each
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = d * signed_byte_value(o.x[2 + r], i);
            reinterpret_cast<float4*>(room + SCALES)[32 * r + chunk_of(lane)] = make_float4(s[0], s[1], s[2], s[3]);
        }
    }
    INLINE static void multiply(const uint8_t* room, const Side&, const uint8_t* acts, int lane, float (&sum)[4]) {
        for_chunks(room, acts, lane, [&](int c, const uint32_t (&words)[4], const uint32_t (&b)[4], const float2 (&tokens)[2]) {
            constexpr uint32_t CODES = 0x3c3c3c3cu, PAIRS = 0xc0c0c0c0u;
            const int chunk = chunk_of((lane & ~3) | c);
            uint32_t pairs[2];
            float4 s[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                pairs[r] = shared4(room + BITS, 4 * (32 * r + chunk) + lane % 4);
                s[r] = reinterpret_cast<const float4*>(room + SCALES)[32 * r + chunk];
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t low[2], high[2], d[4];  // quartets t and 4 + t of rows
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t w = words[2 * half + r], p = half == 0 ? pairs[r] << 4 : pairs[r];
                    low[r] = masked(p << 2, PAIRS, w << 2 & CODES), high[r] = masked(p, PAIRS, w >> 2 & CODES);
                }
                mma_s8(d, low[0], low[1], b[2 * half], WHOLE_START);
                add_whole(sum, d, half == 0 ? s[0].x : s[0].z, half == 0 ? s[1].x : s[1].z, tokens[half]);
                mma_s8(d, high[0], high[1], b[2 * half + 1], WHOLE_START);
                add_whole(sum, d, half == 0 ? s[0].y : s[0].w, half == 0 ? s[1].y : s[1].w, tokens[half]);
            }
        });
    }
};

// Tiles of columns whose activations arrive together, and how many such pieces a block has at most.
constexpr uint32_t FEW_PIECE = 8, FEW_PIECES = 8;
// Tiles of a row tile that a warp takes one after the other: a step.
constexpr uint32_t FEW_STEP = 2;
// Bytes of the sums of a row tile in one step.
constexpr uint32_t FEW_SUM_BYTES = 512;

// What a product does with its results: writes them; multiplies one with another behind a gate; adds them to rows and leaves the
// image of their norm.
enum FewKind { FEW_PLAIN, FEW_GATED, FEW_ADDED };

template <class T, FewKind KIND> struct Few {
    static constexpr bool GATED = KIND == FEW_GATED, ADDED = KIND == FEW_ADDED;
    using Regs = StepRegs<T::WORDS>;
    // Matrices, whose row tiles take turns, and row tiles that are written together.
    static constexpr uint32_t MATRICES = GATED ? 2 : 1, ROW_TILES = GATED || ADDED ? 2 : 1;
    struct Static {
        uint64_t ready[FEW_PIECES + 1];  // pieces of activations, and factors
        float factors[FEW_TOKENS];
    };

    const FewArgs& a;
    // Which part of the columns the block has, its first tile, its tiles, and steps of a row tile.
    const uint32_t parts, part, first_column, columns, steps;
    const uint32_t sums;   // that a row tile has: of each step, or of each warp if there are more steps than warps
    const Stride stride;
    uint32_t begin, end;   // row tiles of this block
    uint32_t most;         // whose sums have room at once
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t *const acts, *const room;
    float4* const slots;
    Static& s;

    INLINE Few(const FewArgs& args, uint8_t* shared, Static& fixed)
        : a(args), parts((a.k_tiles + a.part_tiles - 1) / a.part_tiles), part(blockIdx.x % parts), first_column(part * a.part_tiles),
          columns(min(a.part_tiles, a.k_tiles - first_column)), steps((columns + FEW_STEP - 1) / FEW_STEP), sums(min(steps, MATVEC_WARPS)),
          stride(steps), acts(shared + MATVEC_WARPS * Whole<T>::BYTES), room(shared + warp * Whole<T>::BYTES),
          slots(reinterpret_cast<float4*>(acts + a.part_tiles * FEW_BYTES)), s(fixed) {
        most = (dynamic_shared_bytes() - MATVEC_WARPS * Whole<T>::BYTES - a.part_tiles * FEW_BYTES) / (sums * FEW_SUM_BYTES) & ~1u;
        // Each block one more than the rest divided evenly.
        const uint32_t block = blockIdx.x / parts, blocks = gridDim.x / parts, units = (MATRICES * a.seg[0].row_tiles + ROW_TILES - 1) / ROW_TILES;
        const uint32_t each = units / blocks, more = units % blocks;
        begin = (block * each + min(block, more)) * ROW_TILES;
        end = begin + (each + (block < more)) * ROW_TILES;
    }
    INLINE bool has_second(uint32_t k) const { return FEW_STEP * k + 1 < columns; }

    // Loads tile `i` of the warp's step at `c`, if that is of a row tile before `stop`.
    INLINE void load(const Cursor& c, uint32_t i, uint32_t stop, Regs& o) const {
        if (c.v >= stop || (ADDED && c.v >= a.seg[0].row_tiles) || (i > 0 && !has_second(c.k))) return;
        const uint8_t* tiles = c.v % MATRICES == 0 ? a.seg[0].tiles : a.seg[1].tiles;
        T::load(tiles + static_cast<size_t>(c.v / MATRICES * a.k_tiles + first_column + FEW_STEP * c.k + i) * T::STEP_BYTES, lane, o);
    }
    // Adds the products of a tile in registers; they take tile `i` of the step at `next` then.
    INLINE void take(Regs& o, uint32_t column, const Cursor& next, uint32_t i, uint32_t stop, uint32_t& ready, float (&sum)[4]) const {
        typename Whole<T>::Side side;
        Whole<T>::put(o, room, lane, side);
        load(next, i, stop, o);
        const uint32_t piece = column / FEW_PIECE;
        if (!(ready >> piece & 1)) {
            barrier_wait(shared_address(s.ready) + 8 * piece, 0);
            ready |= 1u << piece;
        }
        __syncwarp();
        Whole<T>::multiply(room, side, acts + column * FEW_BYTES, lane, sum);
        __syncwarp();
    }

    // The image, in pieces: those who need a piece wait for it.
    INLINE void fetch_image() const {
        const uint8_t* from = a.acts + static_cast<size_t>(first_column) * FEW_BYTES;
        const uint32_t all = columns * FEW_BYTES;
        uint32_t bar = shared_address(s.ready);
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (uint32_t at = 0; at < all; at += FEW_PIECE * FEW_BYTES, bar += 8) {
                const uint32_t bytes = min(FEW_PIECE * FEW_BYTES, all - at);
                expect_bytes(bar, bytes);
                bulk_copy(shared_address(acts) + at, from + at, bytes, bar);
            }
        }
#else
#pragma unroll 1
        for (uint32_t at = 0; at < all; at += FEW_PIECE * FEW_BYTES, bar += 8) {
            const uint32_t bytes = min(FEW_PIECE * FEW_BYTES, all - at);
            for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * MATVEC_THREADS) copy16(shared_address(acts) + at + i, from + at + i);
            copies_arrive(bar);
        }
#endif
    }
    // The factors of tokens, a warp for each.
    INLINE void make_factors() const {
        const uint32_t token = warp - (MATVEC_WARPS - FEW_TOKENS);
        if (token >= FEW_TOKENS) return;
        float factor = 1.0f;
        if (a.squares && token < __ldg(a.tokens)) {
            float squares = 0;
#pragma unroll 1
            for (uint32_t p = lane; p < a.norm_parts; p += 32) squares += __ldcg(a.squares + token * a.norm_parts + p);
            factor = rsqrtf(over_warp<Sum>(squares) / static_cast<float>(a.norm_cols) + a.eps);
        }
        if (lane == 0) {
            s.factors[token] = factor;
            barrier_arrive(shared_address(s.ready) + 8 * FEW_PIECES);
        }
    }

    // Where the sums of a step of the row tile in `slot` are kept, of all lanes.
    INLINE float4* sums_of(uint32_t slot, uint32_t column) const { return slots + (slot * sums + column) * 32; }
    // This lane's sums over all steps of the row tile in `slot`, in order.
    INLINE float4 sum_of(uint32_t slot) const {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (uint32_t i = 0; i < sums; i++) {
            const float4 v = sums_of(slot, i)[lane];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        return sum;
    }
    // The sums of 8 rows of one token: lane L has those of token L / 4, and of rows 8 * (L % 4) on of the two row tiles whose sums
    // begin in `slot`.
    INLINE Float8 eight_of(uint32_t slot) const {
        const uint32_t token = lane / 4, tile = lane % 4 / 2, upper = lane % 2;
        Float8 x = {};
#pragma unroll 4
        for (uint32_t i = 0; i < sums; i++) {
            const float* from = reinterpret_cast<const float*>(sums_of(slot + tile, i)) + token / 2 * 4 + upper * 2 + token % 2;
#pragma unroll
            for (int e = 0; e < 8; e++) x.v[e] += from[16 * e];
        }
        return x;
    }
    // The chunk that this lane has of the two row tiles that begin with v, of token L / 4, and whether there is one.
    INLINE uint32_t chunk_of_rows(uint32_t v) const { return v * (TILE_ROWS / 8) + lane % 4; }
    INLINE bool has_rows(uint32_t v, uint32_t tokens) const { return lane / 4 < tokens && 8 * chunk_of_rows(v) < a.seg[0].rows; }
    // What results are added to, and weights of the norm of the sum.
    struct Row {
        Float8 x, norm;
    };
    INLINE Row row_of(uint32_t v, uint32_t tokens) const {
        if (!has_rows(v, tokens)) return {};
        return {load8(a.x + lane / 4 * a.seg[0].rows, chunk_of_rows(v)), load8(a.norm, chunk_of_rows(v))};
    }
    // Adds the results of the two row tiles that begin with v, whose sums begin in `slot`, to a row.
    INLINE void add_rows(uint32_t v, uint32_t slot, Row row, uint32_t tokens) const {
        const uint32_t chunk = chunk_of_rows(v), token = lane / 4;
        const Float8 result = eight_of(slot);
        if (has_rows(v, tokens)) {
            add8(row.x, result);
            if (a.seg[0].bias) add8(row.x, load8(a.seg[0].bias, chunk));
            if (a.x_out) store8(a.x_out + token * a.seg[0].rows, chunk, row.x);
        }
        float squares = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            squares += row.x.v[e] * row.x.v[e];
            row.x.v[e] *= row.norm.v[e];
        }
        squares += __shfl_xor_sync(WARP, squares, 1);
        squares += __shfl_xor_sync(WARP, squares, 2);
        if (lane % 4 == 0 && token < tokens) a.squares_out[token * a.out_parts + v / ROW_TILES] = squares;
        put_few(row.x, token, chunk, a.image_out);
    }
    // Writes the rows of row tile v (of the pair that it begins), whose sums begin in `slot`.
    INLINE void write(uint32_t v, uint32_t slot, uint32_t tokens) const {
        const float4 one = sum_of(slot), other = GATED ? sum_of(slot + 1) : one;
        const Segment& g = a.seg[0];
        float* const out = part == 0 ? g.out : g.tail + (part - 1) * a.slab;
        const float* const bias = part == 0 ? g.bias : nullptr;
        const uint32_t row = v / MATRICES * TILE_ROWS + lane / 4;
        barrier_wait(shared_address(s.ready) + 8 * FEW_PIECES, 0);
        // Rolled up, since code that is run once costs its fetching.
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const uint32_t token = lane % 4 * 2 + i % 2, in_matrix = row + i / 2 * 8;
            if (in_matrix >= g.rows || token >= tokens) continue;
            const float factor = s.factors[token];
            float x = (i == 0 ? one.x : i == 1 ? one.y : i == 2 ? one.z : one.w) * factor;
            if (bias) x += __ldg(bias + in_matrix);
            if (GATED) {
                float up = (i == 0 ? other.x : i == 1 ? other.y : i == 2 ? other.z : other.w) * factor;
                if (a.seg[1].bias) up += __ldg(a.seg[1].bias + in_matrix);
                x = activate(a.gate, x) * up;
            }
            out[token * g.rows + in_matrix] = x;
        }
    }

    INLINE void run() {
        Cursor use = {static_cast<uint32_t>(warp), begin, static_cast<uint32_t>(warp)};
        while (use.k >= steps) use.k -= steps, use.v++;
        uint32_t first = begin, stop = min(end, first + most);
        Regs tiles[FEW_STEP];
#pragma unroll
        for (uint32_t i = 0; i < FEW_STEP; i++) load(use, i, stop, tiles[i]);
        if (threadIdx.x == 0) {
#if __CUDA_ARCH__ >= 900
            constexpr uint32_t ARRIVALS = 1;
#else
            constexpr uint32_t ARRIVALS = MATVEC_THREADS;
#endif
#pragma unroll 1
            for (uint32_t i = 0; i <= FEW_PIECES; i++) barrier_init(shared_address(s.ready) + 8 * i, i < FEW_PIECES ? ARRIVALS : FEW_TOKENS);
            barrier_init_done();
        }
        __syncthreads();
        wait_for_last();
        fetch_image();
        make_factors();
        // What the warp's first row tiles are added to is on its way long before they are there.
        const uint32_t mine = begin + ROW_TILES * warp;
        const Row row = ADDED && mine < end ? row_of(mine, __ldg(a.tokens)) : Row{};

        float sum[4] = {0, 0, 0, 0};
        uint32_t ready = 0;
        while (true) {
            while (use.v < stop) {
                Cursor next = use;
                stride.advance(next);
#pragma unroll
                for (uint32_t i = 0; i < FEW_STEP; i++) {
                    if (i == 0 || has_second(use.k)) take(tiles[i], FEW_STEP * use.k + i, next, i, stop, ready, sum);
                    else load(next, i, stop, tiles[i]);
                }
                // The warp's last step of this row tile.
                if (next.v > use.v) {
                    sums_of(use.v - first, steps <= MATVEC_WARPS ? use.k : warp)[lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                    sum[0] = sum[1] = sum[2] = sum[3] = 0;
                }
                use = next;
            }
            if (stop == end) let_next_start();
            // While tiles were multiplied no register was left for it.
            const uint32_t tokens = __ldg(a.tokens);
            __syncthreads();
#pragma unroll 1
            for (uint32_t v = first + ROW_TILES * warp; v < stop; v += ROW_TILES * MATVEC_WARPS) {
                if (ADDED) add_rows(v, v - first, v == mine ? row : row_of(v, tokens), tokens);
                else write(v, v - first, tokens);
            }
            if (stop == end) break;
            first = stop, stop = min(end, first + most);
#pragma unroll
            for (uint32_t i = 0; i < FEW_STEP; i++) load(use, i, stop, tiles[i]);
            __syncthreads();
        }
    }
};

#define FEW(NAME, T, KIND)                                                                                       \
    extern "C" __global__ void __launch_bounds__(MATVEC_THREADS, 1) NAME(const __grid_constant__ FewArgs a) {      \
        DYNAMIC_SHARED(uint8_t, shared);                                                                          \
        __shared__ Few<T, KIND>::Static fixed;                                                                    \
        Few<T, KIND>(a, shared, fixed).run();                                                                     \
    }
#define FEW_TYPE(NAME, T)              \
    FEW(few_##NAME, T, FEW_PLAIN)      \
    FEW(few_glu_##NAME, T, FEW_GATED)  \
    FEW(few_add_##NAME, T, FEW_ADDED)
