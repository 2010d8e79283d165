// Products of one row of activations with up to three matrices of tiles: the kernels of decoding.
//
// Memory bound: what counts is how many bytes are in flight, always. A block has 16 warps and a contiguous run of steps
// (tiles.cuh), which its warps take in turn, so that a block reads one stream. Each warp holds the next steps in
// registers while it multiplies; the first ones are loaded before the kernel waits for the one before it, since weights
// depend on nothing. The activations are made (norm, quantised) by every block for itself: that costs less than a kernel.
//
// Sums have a fixed order: columns inside a lane, lanes of a row, then the warps of the block as they took their turns.
// In split mode blocks share the tiles evenly, and two of them may have parts of one row of tiles: the first part goes to
// `out`, the last to `tail`.
#pragma once
#include <type_traits>

#include "gate.cuh"
#include "modes.h"
#include "quantize.cuh"
#include "tiles.cuh"

constexpr int MATVEC_WARPS = 16;
constexpr int MATVEC_THREADS = 32 * MATVEC_WARPS;
// Partial sums of a row tile: of each warp, row and t.
constexpr int SLOT_FLOATS = MATVEC_WARPS * TILE_ROWS * 4;
// Row tiles whose partial sums a block keeps at once, where shared memory suffices: no more than the epilogue has room for.
constexpr uint32_t MATVEC_PASS = 18;
// Shared memory after the activations: room of the epilogue and of the sum of squares; the rest is for partial sums, two
// row tiles at least.
constexpr int MATVEC_EXTRA = MATVEC_PASS * TILE_ROWS / 2 + MATVEC_WARPS;
// Bytes of its run that a block asks for before it waits, beside those that it has in registers.
constexpr uint32_t MATVEC_FETCHED = 32 << 10;
// Chunks of 8 columns that a thread keeps for a norm: at most 8192 columns.
constexpr int NORM_CHUNKS = 2;

// The 8 columns of chunk `i` to int8 activations. The two lanes of 16 columns come together.
INLINE void put_int8(const Float8& x, uint32_t i, uint8_t* acts) {
    float top = largest(x);
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
    const Quantized8 q(x, top);
    const int sum = q.sum + __shfl_xor_sync(WARP, q.sum, 1);
    const uint32_t c = 8 * i % TILE_COLS, t = c / 64, j = c / 16 % 4;
    acts += i / 32 * ACTS8_BYTES;
    *reinterpret_cast<uint2*>(acts + (j * 4 + t) * 16 + i % 2 * 8) = q.quartets;
    if (i % 2 == 0) {
        const float d = q.scale;
        *reinterpret_cast<float2*>(acts + 256 + ((j / 2 * 4 + t) * 2 + j % 2) * 8) = make_float2(d, d * float(sum));
    }
}
// The same as f32 for float weights.
INLINE void put_float(const Float8& x, uint32_t i, uint8_t* acts) {
    const uint32_t c = 8 * i % TILE_COLS, t = c / 64, four = c % 64 / 4;
    float4* p = reinterpret_cast<float4*>(acts + i / 32 * (4 * TILE_COLS));
    p[four * 4 + t] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    p[four * 4 + 4 + t] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}
template <bool FLOATS> INLINE void put_acts(const Float8& x, uint32_t i, uint8_t* acts) {
    if constexpr (FLOATS) put_float(x, i, acts);
    else put_int8(x, i, acts);
}

// Weights of the norm of a thread's first chunk, which can be read early.
INLINE Float8 early_norm(const MatvecArgs& a) {
    Float8 w = {};
    if (a.input == ACTS_RMS_NORM && 8 * threadIdx.x < a.cols) w = load8(a.norm, threadIdx.x);
    return w;
}

// Activations in shared memory. Chunks beyond the columns are zeros, up to whole tiles.
template <bool FLOATS>
INLINE void make_acts(const MatvecArgs& a, const Float8& norm, uint32_t copies, uint8_t* acts, float* parts) {
    const uint32_t chunks = a.k_tiles * 32;
    if (a.input == ACTS_READY) {
        const uint32_t n16 = copies * a.k_tiles * (ACTS8_BYTES / 16);
        constexpr int AHEAD = 4;
        for (uint32_t first = threadIdx.x; first < n16; first += AHEAD * MATVEC_THREADS) {
            uint4 v[AHEAD];
#pragma unroll
            for (int c = 0; c < AHEAD; c++) {
                const uint32_t i = first + c * MATVEC_THREADS;
                if (i < n16) v[c] = __ldcg(reinterpret_cast<const uint4*>(a.acts) + i);
            }
#pragma unroll
            for (int c = 0; c < AHEAD; c++) {
                const uint32_t i = first + c * MATVEC_THREADS;
                if (i < n16) reinterpret_cast<uint4*>(acts)[i] = v[c];
            }
        }
    } else if (a.input == ACTS_QUANTIZE) {
        for (uint32_t i = threadIdx.x; i < copies * chunks; i += MATVEC_THREADS) {
            const uint32_t in_row = i % chunks;
            Float8 x = {};
            if (8 * in_row < a.cols) x = load8(a.x + static_cast<size_t>(i / chunks) * a.cols, in_row);
            put_acts<FLOATS>(x, i, acts);
        }
    } else {
        Float8 x[NORM_CHUNKS] = {};
        float squares = 0;
#pragma unroll
        for (int c = 0; c < NORM_CHUNKS; c++) {
            const uint32_t i = threadIdx.x + c * MATVEC_THREADS;
            if (8 * i >= a.cols) continue;
            x[c] = load8(a.x, i);
            if (a.y) add8(x[c], load8(a.y, i));
            if (a.y && a.y_tail) add8(x[c], load8(a.y_tail, i));
            if (blockIdx.x == 0 && a.x_out) store8(a.x_out, i, x[c]);
#pragma unroll
            for (int e = 0; e < 8; e++) squares += x[c].v[e] * x[c].v[e];
        }
        squares = over_warp<Sum>(squares);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
        __syncthreads();
        float total = 0;
#pragma unroll
        for (int w = 0; w < MATVEC_WARPS; w++) total += parts[w];
        const float scale = rsqrtf(__fdividef(total, float(a.cols)) + a.eps);
#pragma unroll
        for (int c = 0; c < NORM_CHUNKS; c++) {
            const uint32_t i = threadIdx.x + c * MATVEC_THREADS;
            if (i >= chunks) continue;
            if (8 * i < a.cols) {
                const Float8 w = c == 0 ? norm : load8(a.norm, i);
#pragma unroll
                for (int e = 0; e < 8; e++) x[c].v[e] *= scale * w.v[e];
            }
            put_acts<FLOATS>(x[c], i, acts);
        }
    }
}

// The steps of all row tiles in order. GATED: row tiles 2p and 2p + 1 are p of gate and of up. EXPERTS: of gated products,
// the row tiles of the chosen experts one after another; of others, a row tile has the steps of all chosen experts, so that
// their results are summed as columns are.
template <bool GATED, bool EXPERTS> struct Place {
    const MatvecArgs& a;
    uint32_t rows;  // row tiles of one matrix (pair)

    INLINE explicit Place(const MatvecArgs& args) : a(args), rows(args.seg[0].row_tiles) {}
    INLINE uint32_t row_tiles() const {
        if (GATED) return 2 * rows * (EXPERTS ? a.used : 1);
        if (EXPERTS) return rows;
        return rows + (a.segs > 1 ? a.seg[1].row_tiles : 0) + (a.segs > 2 ? a.seg[2].row_tiles : 0);
    }
    // The place among the chosen experts of row tile v of gated products.
    INLINE uint32_t expert(uint32_t v) const { return EXPERTS ? v / 2 / rows : 0; }
    // The segment of row tile v and, in `row`, its place there.
    INLINE int segment(uint32_t v, uint32_t& row) const {
        if (GATED) {
            row = EXPERTS ? v / 2 % rows : v / 2;
            return v % 2;
        }
        row = v;
        if (EXPERTS || a.segs == 1 || row < rows) return 0;
        row -= rows;
        if (a.segs == 2 || row < a.seg[1].row_tiles) return 1;
        row -= a.seg[1].row_tiles;
        return 2;
    }
};

// Where a warp is: row tile, step in it, and the index over all.
struct Cursor {
    uint32_t i, v, k;
};
// How a cursor goes on to the warp's next step: row tiles and steps.
struct Stride {
    uint32_t v, k, steps;
    INLINE explicit Stride(uint32_t n) : v(MATVEC_WARPS / n), k(MATVEC_WARPS % n), steps(n) {}
    INLINE void advance(Cursor& c) const {
        c.i += MATVEC_WARPS;
        c.k += k;
        const bool over = c.k >= steps;
        c.v += v + (over ? 1 : 0);
        c.k -= over ? steps : 0;
    }
};

// Partial sums of row `row` of the row tile in `slot`, of one warp: 16 bytes, so placed that the rows of a warp and the
// warps of a row lie in different banks.
INLINE uint32_t slot_place(uint32_t slot, uint32_t row, uint32_t warp) {
    return (slot * TILE_ROWS + row) * MATVEC_WARPS + (warp ^ row % 8);
}

INLINE uint32_t dynamic_shared_bytes() {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// The sum of row `row` of the row tile in `slot` over the warps that had steps of it between `from` and `to`: 8 lanes each
// add the parts of two warps to what they begin with, then a fixed tree. `origin` is the step that warp 0 took first.
INLINE float row_sum(const float* slots, uint32_t slot, uint32_t row, uint32_t from, uint32_t to, uint32_t origin, float sum = 0) {
    const uint32_t first = (from - origin) % MATVEC_WARPS, count = to - from;
#pragma unroll
    for (int c = 0; c < MATVEC_WARPS / 8; c++) {
        const uint32_t warp = threadIdx.x % 8 + 8 * c;
        if ((warp - first) % MATVEC_WARPS >= count) continue;
        const float4 v = reinterpret_cast<const float4*>(slots)[slot_place(slot, row, warp)];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    sum += __shfl_xor_sync(WARP, sum, 1);
    sum += __shfl_xor_sync(WARP, sum, 2);
    sum += __shfl_xor_sync(WARP, sum, 4);
    return sum;
}

// A: the type of the segments, B: of the last one.
template <class A, class B, bool GATED, bool EXPERTS> struct Matvec {
    static constexpr bool MIXED = !std::is_same<A, B>::value;
    static_assert(A::STEPS == B::STEPS && A::FLOATS == B::FLOATS, "types of one kernel share the activations");
    static constexpr int WORDS = A::WORDS > B::WORDS ? A::WORDS : B::WORDS;
    using Regs = StepRegs<WORDS>;
    // Steps of a warp in registers.
    static constexpr int AHEAD = WORDS <= 2 ? 4 : WORDS <= 4 ? 3 : 2;
    // Experts whose activations lie one after another.
    INLINE static uint32_t copies(const MatvecArgs& a) { return EXPERTS && !GATED ? a.used : 1; }

    const MatvecArgs& a;
    const Place<GATED, EXPERTS> place;
    const uint32_t steps;  // of a row tile
    const Stride stride;
    uint32_t begin, end;   // steps of this block
    uint32_t first_tile;   // row tile of `begin`
    uint32_t last_tile;    // row tile where the last segment begins, if types are mixed
    uint32_t tiles_a_pass; // even, since gated products take row tiles in pairs
    uint8_t* acts;
    float *slots, *room, *parts;
    uint32_t chosen;       // the expert in this lane's place

    INLINE Matvec(const MatvecArgs& args, uint8_t* shared)
        : a(args), place(args), steps(copies(args) * args.k_tiles * A::STEPS), stride(steps), acts(shared) {
        const uint32_t acts_bytes = copies(a) * a.k_tiles * ACTS_BYTES<A>;
        room = reinterpret_cast<float*>(shared + acts_bytes);
        parts = room + MATVEC_PASS * TILE_ROWS / 2;
        slots = room + MATVEC_EXTRA;
        tiles_a_pass = min(MATVEC_PASS, (dynamic_shared_bytes() - acts_bytes - 4 * MATVEC_EXTRA) / (4 * SLOT_FLOATS) & ~1u);
        // Whole row tiles (pairs), or steps; each block one more than the rest divided evenly.
        const uint32_t unit = a.split ? 1 : GATED ? 2 * steps : steps;
        const uint32_t tiles = place.row_tiles(), units = a.split ? tiles * steps : GATED ? tiles / 2 : tiles;
        const uint32_t each = units / gridDim.x, more = units % gridDim.x;
        begin = (blockIdx.x * each + min(blockIdx.x, more)) * unit;
        end = begin + (each + (blockIdx.x < more)) * unit;
        first_tile = begin / steps;
        last_tile = MIXED ? tiles - a.seg[a.segs - 1].row_tiles : 0;
    }

    // Where a warp's loads are. Without experts and gates a segment is one stream.
    struct Stream {
        Cursor c;
        const uint8_t* at;
        uint32_t limit;  // the step at which the segment ends
        bool last;       // segment
    };
    // The segment that has the stream's step.
    INLINE void seek(Stream& s) const {
        uint32_t start = 0;
        const uint8_t* tiles = a.seg[0].tiles;
        s.limit = a.seg[0].row_tiles * steps;
        s.last = a.segs == 1;
#pragma unroll
        for (int n = 1; n < 3; n++) {
            if (n >= static_cast<int>(a.segs) || s.c.i < s.limit) continue;
            start = s.limit;
            tiles = a.seg[n].tiles;
            s.limit += a.seg[n].row_tiles * steps;
            s.last = n + 1 == static_cast<int>(a.segs);
        }
        s.at = tiles + static_cast<size_t>(s.c.i - start) * (MIXED && s.last ? B::STEP_BYTES : A::STEP_BYTES);
    }
    // Loads the step of the stream where it is before `stop`, and goes on.
    INLINE void load(Stream& s, uint32_t stop, int lane, Regs& o) const {
        if (s.c.i < stop) {
            if constexpr (GATED || EXPERTS) {
                uint32_t row, k = s.c.k;
                const uint8_t* tiles = place.segment(s.c.v, row) == 1 ? a.seg[1].tiles : a.seg[0].tiles;
                if (EXPERTS) {
                    const uint32_t own = a.k_tiles * A::STEPS, slot = GATED ? place.expert(s.c.v) : k / own;
                    tiles += __shfl_sync(WARP, chosen, slot) * a.expert_bytes;
                    k = row * own + (GATED ? k : k % own);
                } else {
                    k += row * steps;
                }
                A::load(tiles + static_cast<size_t>(k) * A::STEP_BYTES, lane, o);
            } else {
                if (s.c.i >= s.limit) seek(s);
                if (MIXED && s.last) B::load(s.at, lane, o);
                else A::load(s.at, lane, o);
                s.at += MATVEC_WARPS * (MIXED && s.last ? B::STEP_BYTES : A::STEP_BYTES);
            }
        }
        if constexpr (GATED || EXPERTS) stride.advance(s.c);
        else s.c.i += MATVEC_WARPS;
    }

    // Writes the rows of steps from..to, which are in the slots; `first` is the row tile of `from`.
    INLINE void finish(uint32_t first, uint32_t from, uint32_t to) {
        __syncthreads();
        if (to == from) return;
        uint32_t rows = 0;
        for (uint32_t tile_end = first * steps; tile_end < to; tile_end += steps) rows += TILE_ROWS;
        // 8 lanes a row; counts are multiples of 16, so warps stay whole.
        const uint32_t each = GATED ? rows / 2 : rows;
        for (uint32_t i = threadIdx.x / 8; i < each; i += MATVEC_THREADS / 8) {
            if constexpr (GATED) gated_row(first, i);
            else plain_row(first, i, from, to);
        }
        if constexpr (GATED) {
            if (a.acts_out) gated_acts(first, each);
        }
    }
    INLINE void plain_row(uint32_t first, uint32_t i, uint32_t from, uint32_t to) const {
        const uint32_t slot = i / TILE_ROWS, v = first + slot, row = i % TILE_ROWS;
        const uint32_t low = max(from, v * steps), high = min(to, v * steps + steps);
        float sum = 0;
        if (EXPERTS && a.seg[0].bias && low == v * steps) sum = weighted_bias(v * TILE_ROWS + row);
        sum = row_sum(slots, slot, row, low, high, begin, sum);
        if (threadIdx.x % 8 != 0) return;
        uint32_t at;
        const int segment = place.segment(v, at);
        const Segment& s = a.seg[segment];
        at = at * TILE_ROWS + row;
        if (at >= s.rows) return;
        const bool head = low == v * steps, tail = high == v * steps + steps;
        if (head) {
            if (!EXPERTS && s.bias) sum += s.bias[at];
            if (segment == 0 && a.residual) sum += a.residual[at];
            s.out[at] = sum;
            if (a.split && tail) s.tail[at] = 0;
        } else {
            s.tail[at] = sum;
        }
    }
    // Biases are read last, when nothing else is under way: they come into the cache while products are made.
    INLINE void fetch_biases(uint32_t warp, uint32_t lane) const {
        // Gated products read those of one expert for a row tile, the others those of all.
        const uint32_t v = first_tile + (GATED ? threadIdx.x : warp), slot = GATED ? place.expert(v) : lane;
        uint32_t at;
        const Segment& s = a.seg[place.segment(v, at)];
        const uint32_t expert = __shfl_sync(WARP, chosen, slot);
        if (s.bias && v * steps < end && slot < a.used) prefetch(s.bias + expert * s.rows + at * TILE_ROWS);
    }
    // The biases of a row's experts times the weights of their results: each of 8 lanes has the sum of some. Whole warps call.
    INLINE float weighted_bias(uint32_t at) const {
        float sum = 0;
#pragma unroll 1
        for (uint32_t some = 0; some < a.used; some += 8) {
            const uint32_t slot = some + threadIdx.x % 8, expert = __shfl_sync(WARP, chosen, slot);
            if (slot < a.used && at < a.seg[0].rows) sum += __ldcg(a.weights + slot) * __ldg(a.seg[0].bias + expert * a.seg[0].rows + at);
        }
        return sum;
    }
    INLINE void gated_row(uint32_t first, uint32_t i) const {
        const uint32_t slot = i / TILE_ROWS * 2, v = first + slot, row = i % TILE_ROWS;
        const uint32_t low = v * steps, middle = low + steps;
        float gate = row_sum(slots, slot, row, low, middle, begin);
        float up = row_sum(slots, slot + 1, row, middle, middle + steps, begin);
        const uint32_t expert = EXPERTS ? __shfl_sync(WARP, chosen, place.expert(v)) : 0;
        if (threadIdx.x % 8 != 0) return;
        uint32_t at;
        place.segment(v, at);
        at = at * TILE_ROWS + row;
        const bool inside = at < a.seg[0].rows;
        const uint32_t of_bias = expert * a.seg[0].rows + at;
        if (inside && a.seg[0].bias) gate += a.seg[0].bias[of_bias];
        if (inside && a.seg[1].bias) up += a.seg[1].bias[of_bias];
        float h;
        if constexpr (EXPERTS) {
            const Clamped clamped = {a.alpha, a.limit};
            h = a.limit > 0 ? clamped(gate) * clamped.other(up) : Swish(a.gate)(gate) * up;
            // The weight of an expert's result, of which what follows is a linear function.
            h *= __ldcg(a.weights + place.expert(v));
        } else {
            h = activate(a.gate, gate) * up;
        }
        if (a.acts_out) room[i] = inside ? h : 0.0f;
        else if (inside) a.seg[0].out[place.expert(v) * a.seg[0].rows + at] = h;
    }
    // `count` gated values in `room` to int8 activations, 16 threads a scale.
    INLINE void gated_acts(uint32_t first, uint32_t count) const {
        __syncthreads();
        const uint32_t k_tiles = (a.seg[0].rows + TILE_COLS - 1) / TILE_COLS;
        for (uint32_t i = threadIdx.x; i < count; i += MATVEC_THREADS) {
            const uint32_t lanes = 0xffffu << (threadIdx.x & 16);
            const float h = room[i];
            float top = fabsf(h);
#pragma unroll
            for (int o = 8; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(lanes, top, o));
            const float inverse = inverse_of(top), d = scale_of(top);
            const int q = __float2int_rn(h * inverse);
            int sum = q;
#pragma unroll
            for (int o = 8; o; o /= 2) sum += __shfl_xor_sync(lanes, sum, o);
            const uint32_t v = first + i / TILE_ROWS * 2;
            uint32_t c;
            place.segment(v, c);
            c = c * TILE_ROWS + i % TILE_ROWS;
            uint8_t* out = a.acts_out + static_cast<size_t>(place.expert(v) * k_tiles + c / TILE_COLS) * ACTS8_BYTES;
            const uint32_t t = c / 64 % 4, j = c / 16 % 4;
            const uint32_t at = quartet_place(c);
            out[(j * 4 + t) * 16 + c / 8 % 2 * 8 + at] = static_cast<uint8_t>(q);
            if (c % 16 == 0) {
                *reinterpret_cast<float2*>(out + 256 + ((j / 2 * 4 + t) * 2 + j % 2) * 8) =
                    make_float2(d, d * float(sum));
            }
        }
    }
    // Activations beyond the rows, up to whole tiles, are zeros.
    INLINE void pad_acts() const {
        const uint32_t k_tiles = (a.seg[0].rows + TILE_COLS - 1) / TILE_COLS, groups = k_tiles * 16;
        const uint32_t first = a.seg[0].row_tiles, left = groups - first;
        for (uint32_t i = threadIdx.x; i < left * (EXPERTS ? a.used : 1); i += MATVEC_THREADS) {
            const uint32_t c = (first + i % left) * 16, t = c / 64 % 4, j = c / 16 % 4;
            uint8_t* out = a.acts_out + static_cast<size_t>(i / left * k_tiles + c / TILE_COLS) * ACTS8_BYTES;
            reinterpret_cast<uint4*>(out)[j * 4 + t] = make_uint4(0, 0, 0, 0);
            *reinterpret_cast<float2*>(out + 256 + ((j / 2 * 4 + t) * 2 + j % 2) * 8) = make_float2(0, 0);
        }
    }

    // Weights behind those in registers come into the cache that all multiprocessors share, while the kernel waits.
    INLINE void fetch_more(int lane) const {
        constexpr uint32_t HELD = MATVEC_WARPS * AHEAD;
        if (EXPERTS || MIXED || a.segs > (GATED ? 2 : 1) || lane >= (GATED ? 2 : 1)) return;
        const uint32_t run = (end - begin) / (GATED ? 2 : 1), skip = HELD / (GATED ? 2 : 1);
        const uint32_t first = GATED ? first_tile / 2 * steps : begin;
        const uint32_t count = min(run > skip ? run - skip : 0, MATVEC_FETCHED / A::STEP_BYTES / (GATED ? 2 : 1));
        if (count) prefetch_run(a.seg[lane].tiles + static_cast<size_t>(first + skip) * A::STEP_BYTES, count * A::STEP_BYTES);
    }
    // The products of the step at `use`.
    INLINE void take(const Regs& o, Cursor& use, float (&sum)[2], uint32_t first, uint32_t pass_end) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
        const uint8_t* x = acts + use.k / A::STEPS * ACTS_BYTES<A>;
        if (MIXED && use.v >= last_tile) step_dot<B>(o, x, t, sum, use.k % A::STEPS);
        else step_dot<A>(o, x, t, sum, use.k % A::STEPS);
        // The warp's last step of this row tile: its sums go to the slots.
        if (use.k + MATVEC_WARPS >= steps || use.i + MATVEC_WARPS >= pass_end) {
            float* slot = slots + 4 * slot_place(use.v - first, lane / 4, warp) + t;
            slot[0] = sum[0];
            slot[4 * 8 * MATVEC_WARPS] = sum[1];  // 8 rows on, of the same place
            sum[0] = sum[1] = 0;
        }
        stride.advance(use);
    }

    INLINE void run() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Cursor use = {begin + warp, first_tile, begin - first_tile * steps + warp};
        while (use.k >= steps) {
            use.k -= steps;
            use.v++;
        }
        uint32_t first = first_tile, pass = begin, pass_end = min(end, (first + tiles_a_pass) * steps);
        Stream next = {use, nullptr, 0, false};
        Regs ahead[AHEAD];
        // The chosen experts, at most as many as lanes. Gated products wait for the choice. The others come right after gated
        // ones of the same choice, which could only start when that had been made.
        if (EXPERTS) {
            if (GATED) wait_for_last();
            chosen = lane < static_cast<int>(a.used) ? __ldcg(a.experts + lane) : 0;
        }
#pragma unroll
        for (Regs& o : ahead) load(next, pass_end, lane, o);
        if (EXPERTS && a.seg[0].bias) fetch_biases(warp, lane);
        if (warp == 0) fetch_more(lane);
        const Float8 norm = early_norm(a);
        // Blocks that end early make room for the next kernel, which then loads weights while others still work.
        let_next_start();
        if (!EXPERTS || !GATED) wait_for_last();
        make_acts<A::FLOATS>(a, norm, copies(a), acts, parts);
        __syncthreads();

        float sum[2] = {0, 0};
        while (true) {
            while (use.i < pass_end) {
#pragma unroll
                for (Regs& o : ahead) {
                    if (use.i >= pass_end) break;
                    take(o, use, sum, first, pass_end);
                    load(next, pass_end, lane, o);
                }
            }
            const uint32_t from = pass, to = pass_end, tile = first;
            if (pass_end < end) {
                // The first steps of the next pass come while this one ends.
                pass = pass_end;
                first += tiles_a_pass;
                pass_end = min(end, pass + tiles_a_pass * steps);
                next = {use, nullptr, 0, false};
#pragma unroll
                for (Regs& o : ahead) load(next, pass_end, lane, o);
            } else {
                pass = end;
            }
            finish(tile, from, to);
            if (pass == end) break;
            __syncthreads();
        }
        if (GATED && a.acts_out && blockIdx.x == 0) pad_acts();
    }
};

#define MATVEC(NAME, A, B, GATED, EXPERTS)                                                     \
    extern "C" __global__ void __launch_bounds__(MATVEC_THREADS, 1) NAME(const __grid_constant__ MatvecArgs a) { \
        DYNAMIC_SHARED(uint8_t, shared);                                                              \
        Matvec<A, B, GATED, EXPERTS>(a, shared).run();                                         \
    }
// The two kernels of a type, whose names begin with PREFIX.
#define MATVEC_TYPE(PREFIX, NAME, T, EXPERTS)             \
    MATVEC(PREFIX##matvec_##NAME, T, T, false, EXPERTS)   \
    MATVEC(PREFIX##matvec_glu_##NAME, T, T, true, EXPERTS)
