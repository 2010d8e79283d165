// Products of many rows on Hopper: wgmma with weights that become 16-bit numbers in registers on their way from tiles.
//
// Two warps fetch, others multiply. Weights and activations come in rings of their own: weights a k tile at once (floats a
// quarter of one), activations 64 columns. Blocks of threads differ by the number of tokens:
//   up to 32   8 row tiles (of gated products 4 of gate and of up), two blocks on a multiprocessor: that of the next kernel
//              fetches while this one ends. Bound by reading weights, and by what happens between kernels.
//   64         16 row tiles, a warp each: some decode while others wait for tensor cores or memory.
//   128        16 row tiles, two to a warp, since registers are for sums. Bound by the tensor cores.
#pragma once
#include <type_traits>

#include "acts.cuh"
#include "products.cuh"
#include "wgmma.cuh"

// Blocks on a multiprocessor, row tiles of a warp, warps that multiply.
constexpr int hopper_blocks(int tokens) { return tokens <= 32 ? 2 : 1; }
constexpr int hopper_tiles(int tokens) { return tokens > 64 ? 2 : 1; }
constexpr int hopper_warps(int tokens) { return tokens == 64 ? 16 : 8; }
constexpr int hopper_threads(int tokens) { return 32 * hopper_warps(tokens) + 128; }

// A, B: types of the segments, B of the last one.
template <class A, class B, int N> struct HopperShape {
    static_assert(A::FLOATS == B::FLOATS && A::BF16 == B::BF16 && A::SCALE == B::SCALE, "types of one kernel share the image");
    static constexpr int MT = hopper_tiles(N), WARPS = hopper_warps(N), TILES = MT * WARPS;  // row tiles of a block
    static constexpr int SHARED = (hopper_blocks(N) == 2 ? 110 : 225) * 1024;                // what the rings may take
    static constexpr int PARTS = A::FLOATS ? 4 : 1;  // of a tile that are fetched apart
    static constexpr int PART_BYTES = (TILE_BYTES<A> > TILE_BYTES<B> ? TILE_BYTES<A> : TILE_BYTES<B>) / PARTS;
    static constexpr int ACTS_PIECE = N * 128, ACTS_PIECES = N > 64 ? 5 : 6;
    static constexpr int WEIGHT_PIECE = TILES * PART_BYTES;
    static constexpr int FIT = (SHARED - ACTS_PIECES * ACTS_PIECE) / WEIGHT_PIECE;
    static constexpr int WEIGHT_PIECES = FIT < 6 ? FIT : 6;
};

// A place in a ring.
template <int PIECES> struct Turn {
    uint32_t stage = 0, parity = 0;
    INLINE void next() {
        if (++stage == PIECES) stage = 0, parity ^= 1;
    }
};

template <class A, class B, int N, bool GATED, template <int> class TOKENS> struct Hopper {
    using Shape = HopperShape<A, B, N>;
    static constexpr bool MIXED = !std::is_same<A, B>::value;
    static constexpr int MT = Shape::MT, WARPS = Shape::WARPS, NT = N / GROUP_ROWS, PARTS = Shape::PARTS;
    static constexpr int WP = Shape::WEIGHT_PIECES, AP = Shape::ACTS_PIECES;
    using Common = Tiled<A, NT, GATED, WARPS, MT, TOKENS>;
    using Args = typename TOKENS<NT>::Args;

    const Common c;
    uint8_t *acts, *weights;
    uint32_t acts_full, acts_empty, weights_full, weights_empty;

    // Swizzled rows want addresses that are multiples of 1024.
    INLINE Hopper(const Args& args, uint8_t* shared)
        : c(args), acts(shared + (1024 - shared_address(shared) % 1024) % 1024), weights(acts + AP * Shape::ACTS_PIECE) {
        acts_full = shared_address(weights + WP * Shape::WEIGHT_PIECE);
        acts_empty = acts_full + 8 * AP;
        weights_full = acts_empty + 8 * AP;
        weights_empty = weights_full + 8 * WP;
    }
    // Whether a block of outputs is of the last segment, where that has a type of its own.
    INLINE bool other(const RowBlock& at) const { return MIXED && at.segment + 1 == static_cast<int>(c.a.segs); }

    // A lane fetches one row tile. Both rings start empty, so the first round waits for nothing: a wait for the other parity
    // passes. Weights do not wait for the kernel before. Addresses are worked out once for a block of outputs.
    INLINE void produce_weights(uint32_t begin, uint32_t end, int lane) const {
        Turn<WP> turn;
        const uint32_t k_tiles = c.a.k_tiles;
        uint32_t block = begin / k_tiles, k = begin - block * k_tiles;
        const uint32_t own = shared_address(weights) + lane * Shape::PART_BYTES;
        while (begin < end) {
            const RowBlock at = c.rows_of(block);
            const uint32_t tile_bytes = other(at) ? TILE_BYTES<B> : TILE_BYTES<A>, part_bytes = tile_bytes / PARTS;
            const uint8_t* mine = lane < Shape::TILES ? c.tile(block, at, lane, k, tile_bytes) : nullptr;
            const uint32_t bytes = __popc(__ballot_sync(WARP, mine != nullptr)) * part_bytes;
            const uint32_t stop = min(end, begin + k_tiles - k);
            for (uint32_t n = (stop - begin) * PARTS; n > 0; n--) {
                const uint32_t bar = weights_full + 8 * turn.stage;
                barrier_wait(weights_empty + 8 * turn.stage, turn.parity ^ 1);
                if (lane == 0) expect_bytes(bar, bytes);
                __syncwarp();
                if (mine) {
                    bulk_copy(own + turn.stage * Shape::WEIGHT_PIECE, mine, part_bytes, bar);
                    mine += part_bytes;
                }
                turn.next();
            }
            begin = stop, block++, k = 0;
        }
    }
    INLINE void produce_acts(uint32_t begin, uint32_t end) const {
        Turn<AP> turn;
        const uint32_t k_tiles = c.a.k_tiles;
        uint32_t block = begin / k_tiles, k = begin - block * k_tiles;
        const size_t stride = static_cast<size_t>(c.a.groups) * GROUP_BYTES;
        wait_for_last();
        while (begin < end) {
            const uint8_t* from = c.a.acts + 4 * k * stride + c.list.first(c.tokens_of(block)) / GROUP_ROWS * GROUP_BYTES;
            const uint32_t stop = min(end, begin + k_tiles - k);
            for (uint32_t n = (stop - begin) * 4; n > 0; n--, from += stride) {
                const uint32_t bar = acts_full + 8 * turn.stage;
                barrier_wait(acts_empty + 8 * turn.stage, turn.parity ^ 1);
                expect_bytes(bar, Shape::ACTS_PIECE);
                bulk_copy(shared_address(acts) + turn.stage * Shape::ACTS_PIECE, from, Shape::ACTS_PIECE, bar);
                turn.next();
            }
            begin = stop, block++, k = 0;
        }
    }

    // The products of a unit.
    template <class T> INLINE void multiply(Turn<WP>& w, Turn<AP>& x, int warp, int lane, float (&sum)[MT][4 * NT]) const {
        Row<T> rows[MT][2];
#pragma unroll
        for (int i = 0; i < 8; i++) {  // words of a lane's columns
            if (i % (8 / PARTS) == 0) barrier_wait(weights_full + 8 * w.stage, w.parity);
            const uint8_t* tiles = weights + w.stage * Shape::WEIGHT_PIECE;
            uint32_t o[MT][2][4];
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    // With one tile a warp, row r of fragments of gated products is of gate or of up.
                    constexpr bool SHARED = GATED && MT == 1;
                    const uint8_t* tile = tiles + (SHARED ? (warp & ~1) + r : warp * MT + m) * Shape::PART_BYTES;
                    const int row = SHARED ? warp % 2 : r;
                    if constexpr (T::FLOATS) {
                        const uint4 v = shared16(tile, (2 * row + i % 2) * 32 + chunk_of(lane));
                        o[m][r][0] = v.x, o[m][r][1] = v.y, o[m][r][2] = v.z, o[m][r][3] = v.w;
                    } else {
                        if (i == 0) rows[m][r].scales(tile, lane, row);
                        if (i % 4 == 0) rows[m][r].codes(tile, lane, i / 4, row);
                        rows[m][r].word(i / 4, i % 4, o[m][r]);
                    }
                }
            }
            if (i % 2 == 0) barrier_wait(acts_full + 8 * x.stage, x.parity);
            const uint64_t b = rows128(shared_address(acts) + x.stage * Shape::ACTS_PIECE + i % 2 * 64);
            products_fence();
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const uint32_t even[4] = {o[m][0][0], o[m][1][0], o[m][0][1], o[m][1][1]};
                const uint32_t odd[4] = {o[m][0][2], o[m][1][2], o[m][0][3], o[m][1][3]};
                Product<N, T::BF16>::add(sum[m], even, b);
                Product<N, T::BF16>::add(sum[m], odd, b + 2);
            }
            products_commit();
            // Two words may be under way while the next ones are decoded; those before are done, and every second time
            // a piece of activations with them. (With words under way from unit to unit the compiler takes them one by one.)
            if (i < 7) products_wait<2>();
            else products_wait<0>();
            if (i % 2 == 1 && lane == 0) {
                if (i > 1) barrier_arrive(acts_empty + 8 * (x.stage == 0 ? AP - 1 : x.stage - 1));
                if (i == 7) barrier_arrive(acts_empty + 8 * x.stage);
            }
            if (i % 2 == 1) x.next();
            if (i % (8 / PARTS) == 8 / PARTS - 1) {
                __syncwarp();
                if (lane == 0) barrier_arrive(weights_empty + 8 * w.stage);
                w.next();
            }
        }
    }
    INLINE void consume(uint32_t begin, uint32_t end, int warp, int lane) const {
        wait_for_last();
        float sum[MT][NT][4];
        auto& flat = reinterpret_cast<float(&)[MT][4 * NT]>(sum);
        Turn<WP> w;
        Turn<AP> x;
        const uint32_t k_tiles = c.a.k_tiles;
        for (uint32_t unit = begin; unit < end;) {
            const uint32_t block = unit / k_tiles, stop = min(end, (block + 1) * k_tiles);
            const bool second = other(c.rows_of(block));
            c.start(block, begin, end, warp, sum);
#pragma unroll
            for (int m = 0; m < MT; m++) pin(flat[m]);
            for (; unit < stop; unit++) {
                if (MIXED && second) multiply<B>(w, x, warp, lane, flat);
                else multiply<A>(w, x, warp, lane, flat);
            }
#pragma unroll
            for (int m = 0; m < MT; m++) pin(flat[m]);
            c.finish(block, begin, end, warp, sum);
        }
    }

    INLINE void run() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (threadIdx.x == 0) {
            for (int i = 0; i < AP; i++) {
                barrier_init(acts_full + 8 * i, 1);
                barrier_init(acts_empty + 8 * i, WARPS);
            }
            for (int i = 0; i < WP; i++) {
                barrier_init(weights_full + 8 * i, 1);
                barrier_init(weights_empty + 8 * i, WARPS);
            }
            barrier_init_done();
        }
        __syncthreads();
        let_next_start();
        const uint32_t begin = c.begin(), end = c.end();
        if (warp >= WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
            if (warp == WARPS) produce_weights(begin, end, lane);
            if (warp == WARPS + 1 && lane == 0) produce_acts(begin, end);
        } else {
            if constexpr (N <= 32) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
            else if constexpr (N == 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
            else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consume(begin, end, warp, lane);
        }
    }
};

#define HOPPER_OF(NAME, A, B, N, GATED, TOKENS)                                           \
    extern "C" __global__ void __launch_bounds__(hopper_threads(N), hopper_blocks(N))     \
        NAME(const __grid_constant__ TOKENS<N / GROUP_ROWS>::Args a) {                    \
        DYNAMIC_SHARED(uint8_t, shared);                                                  \
        if (TOKENS<N / GROUP_ROWS>::LISTED) wait_for_last();                              \
        Hopper<A, B, N, GATED, TOKENS>(a, shared).run();                                  \
    }
#define HOPPER(NAME, A, B, N, GATED) HOPPER_OF(NAME, A, B, N, GATED, StepTokens)
#define HOPPER_SIZES(NAME, A, B, GATED) \
    HOPPER(NAME##_16, A, B, 16, GATED)  \
    HOPPER(NAME##_32, A, B, 32, GATED)  \
    HOPPER(NAME##_64, A, B, 64, GATED)  \
    HOPPER(NAME##_128, A, B, 128, GATED)
#define HOPPER_TYPE(NAME, T)                   \
    HOPPER_SIZES(hopper_##NAME, T, T, false)   \
    HOPPER_SIZES(hopper_glu_##NAME, T, T, true)
