// Products of 2 to 64 rows of activations with tiles, by mma on every architecture: bound by reading the weights.
//
// One producer warp keeps pieces of shared memory filled: the tiles of one k tile of a block of row tiles, and the
// activations of those columns. Eight warps turn tiles to f16 in registers, each its own row tiles. Up to 8 tokens two blocks
// share a multiprocessor, so that the next kernel fetches while this one ends. More tokens than 64 are done in blocks of 64.
#pragma once
#include <type_traits>

#include "acts.cuh"
#include "products.cuh"

constexpr int BATCH_WARPS = 8;
constexpr int BATCH_THREADS = 32 * (BATCH_WARPS + 1);

// A, B: types of the segments, B of the last one. NT: groups of 8 tokens.
template <class A, class B, int NT> struct BatchShape {
    static constexpr int WARPS = A::FLOATS ? 4 : BATCH_WARPS;  // that have row tiles
    static constexpr int TILES = NT == 1 ? 1 : 2;              // row tiles of a warp
    static constexpr int BLOCKS = NT == 1 ? 2 : 1;             // on a multiprocessor
    static constexpr int BLOCK_TILES = WARPS * TILES;
    static constexpr int TILE = TILE_BYTES<A> > TILE_BYTES<B> ? TILE_BYTES<A> : TILE_BYTES<B>;
    static constexpr int PIECE = BLOCK_TILES * TILE + NT * 4 * GROUP_BYTES;
};

template <class A, class B, int NT, bool GATED, template <int> class TOKENS> struct Batch {
    using Shape = BatchShape<A, B, NT>;
    static constexpr bool MIXED = !std::is_same<A, B>::value;
    static constexpr int WARPS = Shape::WARPS, MT = Shape::TILES;
    using Common = Tiled<A, NT, GATED, WARPS, MT, TOKENS>;
    using Args = typename TOKENS<NT>::Args;
    static constexpr int WEIGHTS = Shape::BLOCK_TILES * Shape::TILE, PIECE = Shape::PIECE;

    const Common c;
    const ProductArgs& a;
    uint8_t* pieces;
    uint32_t full, empty;  // barriers

    INLINE Batch(const Args& args, uint8_t* shared)
        : c(args), a(c.a), pieces(shared), full(shared_address(shared + a.stages * PIECE)), empty(full + 8 * a.stages) {}
    INLINE uint8_t* piece(uint32_t stage) const { return pieces + stage * PIECE; }
    // Whether a block of outputs is of the last segment, where that has a type of its own.
    INLINE bool other(uint32_t block) const { return MIXED && c.rows_of(block).segment + 1 == static_cast<int>(a.segs); }

    // ---- the producer
    INLINE void copy(uint32_t dst, const uint8_t* src, uint32_t bytes, uint32_t bar) const {
#if __CUDA_ARCH__ >= 900
        bulk_copy(dst, src, bytes, bar);
#else
        for (uint32_t i = 0; i < bytes; i += 16) copy16(dst + i, src + i);
#endif
    }
    INLINE void fetch_weights(uint32_t unit, uint32_t stage, int lane) const {
        const uint32_t block = unit / a.k_tiles, k = unit % a.k_tiles;
        const RowBlock at = c.rows_of(block);
        const uint32_t bar = full + 8 * stage;
        const uint32_t tile_bytes = other(block) ? TILE_BYTES<B> : TILE_BYTES<A>;
        const uint8_t* mine = lane < Shape::BLOCK_TILES ? c.tile(block, at, lane, k, tile_bytes) : nullptr;
        const uint32_t count = __popc(__ballot_sync(WARP, mine != nullptr));
        if (lane == 0) expect_bytes(bar, count * tile_bytes + NT * 4 * GROUP_BYTES);
        __syncwarp();
        if (mine) copy(shared_address(piece(stage)) + lane * Shape::TILE, mine, tile_bytes, bar);
    }
    INLINE void fetch_acts(uint32_t unit, uint32_t stage, int lane) const {
        const uint32_t first = c.list.first(c.tokens_of(unit / a.k_tiles)), k = unit % a.k_tiles;
        if (lane < 4) {
            const uint8_t* src = a.acts + (static_cast<size_t>(4 * k + lane) * a.groups + first / GROUP_ROWS) * GROUP_BYTES;
            const uint32_t dst = shared_address(piece(stage)) + WEIGHTS + lane * NT * GROUP_BYTES;
            copy(dst, src, NT * GROUP_BYTES, full + 8 * stage);
        }
#if __CUDA_ARCH__ < 900
        copies_arrive(full + 8 * stage);
#endif
    }
    INLINE void produce(uint32_t begin, uint32_t end, int lane) const {
        const uint32_t ahead = min(a.stages, end - begin);
        for (uint32_t i = 0; i < ahead; i++) fetch_weights(begin + i, i, lane);
        wait_for_last();
        for (uint32_t i = 0; i < ahead; i++) fetch_acts(begin + i, i, lane);
        uint32_t stage = 0, parity = 0;
        for (uint32_t unit = begin + ahead; unit < end; unit++) {
            barrier_wait(empty + 8 * stage, parity);
            fetch_weights(unit, stage, lane);
            fetch_acts(unit, stage, lane);
            if (++stage == a.stages) stage = 0, parity ^= 1;
        }
        let_next_start();
    }

    // ---- the consumers
    template <class T> INLINE void multiply(const uint8_t* p, int warp, int lane, float (&sum)[MT][NT][4]) const {
        // With one tile a warp, row r of fragments of gated products is of gate or of up.
        constexpr bool SHARED = GATED && MT == 1;
        const uint8_t* tiles = p + (SHARED ? warp & ~1 : warp * MT) * Shape::TILE;
        // Row and 16-byte chunk that this lane names to ldmatrix.
        const uint32_t acts = shared_address(p + WEIGHTS) + lane % 8 * 128;
        Row<T> w[MT][2];
        auto rows = [&](auto f) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int r = 0; r < 2; r++) f(w[m][r], tiles + (SHARED ? r : m) * Shape::TILE, SHARED ? warp % 2 : r);
            }
        };
        rows([&](Row<T>& row, const uint8_t* tile, int r) { row.scales(tile, lane, r); });
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows([&](Row<T>& row, const uint8_t* tile, int r) { row.codes(tile, lane, half, r); });
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t o[MT][2][4];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    w[m][0].word(half, i, o[m][0]);
                    w[m][1].word(half, i, o[m][1]);
                }
                const uint32_t chunk = (4 * (i % 2) + lane / 8) ^ lane % 8;
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    uint32_t b[4];
                    load_matrices(acts + ((2 * half + i / 2) * NT + n) * GROUP_BYTES + chunk * 16, b);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma<T::BF16>(sum[m][n], o[m][0][0], o[m][1][0], o[m][0][1], o[m][1][1], b[0], b[1]);
                        mma<T::BF16>(sum[m][n], o[m][0][2], o[m][1][2], o[m][0][3], o[m][1][3], b[2], b[3]);
                    }
                }
            }
        }
    }
    INLINE void consume(uint32_t begin, uint32_t end, int warp, int lane) const {
        wait_for_last();
        float sum[MT][NT][4];
        uint32_t stage = 0, parity = 0;
        for (uint32_t unit = begin; unit < end;) {
            const uint32_t block = unit / a.k_tiles, stop = min(end, (block + 1) * a.k_tiles);
            const bool second = other(block);
            c.start(block, begin, end, warp, sum);
            for (; unit < stop; unit++) {
                barrier_wait(full + 8 * stage, parity);
                if (MIXED && second) multiply<B>(piece(stage), warp, lane, sum);
                else multiply<A>(piece(stage), warp, lane, sum);
                __syncwarp();
                if (lane == 0) barrier_arrive(empty + 8 * stage);
                if (++stage == a.stages) stage = 0, parity ^= 1;
            }
            c.finish(block, begin, end, warp, sum);
        }
    }
    INLINE void run() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < a.stages; i++) {
#if __CUDA_ARCH__ >= 900
                barrier_init(full + 8 * i, 1);
#else
                barrier_init(full + 8 * i, 32);
#endif
                barrier_init(empty + 8 * i, WARPS);
            }
            barrier_init_done();
        }
        __syncthreads();
        const uint32_t begin = c.begin(), end = c.end();
        if (warp == WARPS) produce(begin, end, lane);
        else if (warp < WARPS) consume(begin, end, warp, lane);
    }
};

#define BATCH_OF(NAME, A, B, NT, GATED, TOKENS)                                                                    \
    extern "C" __global__ void __launch_bounds__(32 * (BatchShape<A, B, NT>::WARPS + 1), BatchShape<A, B, NT>::BLOCKS) \
        NAME(const __grid_constant__ TOKENS<NT>::Args a) {                                                         \
        DYNAMIC_SHARED(uint8_t, shared);                                                                           \
        if (TOKENS<NT>::LISTED) wait_for_last();                                                                   \
        Batch<A, B, NT, GATED, TOKENS>(a, shared).run();                                                           \
    }
#define BATCH(NAME, A, B, NT, GATED) BATCH_OF(NAME, A, B, NT, GATED, StepTokens)
#define BATCH_SIZES(NAME, T)                  \
    BATCH(batch_##NAME##_8, T, T, 1, false)   \
    BATCH(batch_##NAME##_16, T, T, 2, false)  \
    BATCH(batch_##NAME##_32, T, T, 4, false)  \
    BATCH(batch_##NAME##_64, T, T, 8, false)  \
    BATCH(batch_glu_##NAME##_8, T, T, 1, true)  \
    BATCH(batch_glu_##NAME##_16, T, T, 2, true) \
    BATCH(batch_glu_##NAME##_32, T, T, 4, true) \
    BATCH(batch_glu_##NAME##_64, T, T, 8, true)
