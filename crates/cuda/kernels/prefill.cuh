// Products of many rows on Hopper: wgmma with weights that become f16 in registers on their way from tiles.
//
// A block does 256 rows of weights (16 row tiles; of gated products 128 of gate and of up) times 128 tokens. One warp
// fetches, two warpgroups multiply, each 2 x 64 rows. Weights and activations come in rings of their own: weights a k tile
// at once (floats a quarter), activations 64 columns. While the tensor cores work on one word of columns, the next word
// of weights is decoded.
#pragma once
#include "batch.cuh"
#include "wgmma.cuh"

constexpr int PREFILL_TOKENS = 128;
constexpr int PREFILL_GROUPS = PREFILL_TOKENS / GROUP_ROWS;
constexpr int PREFILL_WARPS = 8;
constexpr int PREFILL_THREADS = 384;
constexpr int PREFILL_TILES = 2 * PREFILL_WARPS;  // row tiles of a block
constexpr int ACTS_PIECE = PREFILL_GROUPS * GROUP_BYTES;
constexpr int ACTS_PIECES = 5;

template <class T> struct PrefillShape {
    static constexpr int PARTS = T::FLOATS ? 4 : 1;  // of a tile that are fetched apart
    static constexpr int PART_BYTES = TILE_BYTES<T> / PARTS;
    static constexpr int WEIGHT_PIECE = PREFILL_TILES * PART_BYTES;
    static constexpr int WEIGHT_PIECES = T::FLOATS ? 4 : 2;
    static constexpr int BYTES =
        ACTS_PIECES * ACTS_PIECE + WEIGHT_PIECES * WEIGHT_PIECE + 16 * (ACTS_PIECES + WEIGHT_PIECES) + 1024;
};

// A place in a ring.
template <int PIECES> struct Turn {
    uint32_t stage = 0, parity = 0;
    INLINE void next() {
        if (++stage == PIECES) stage = 0, parity ^= 1;
    }
};

template <class T, bool GATED> struct Prefill {
    using Shape = PrefillShape<T>;
    using Common = Tiled<T, PREFILL_GROUPS, GATED, PREFILL_WARPS>;
    static constexpr int WP = Shape::WEIGHT_PIECES, AP = ACTS_PIECES;

    const Common c;
    uint8_t *acts, *weights;
    uint32_t acts_full, acts_empty, weights_full, weights_empty;

    // Swizzled rows want addresses that are multiples of 1024.
    INLINE Prefill(const ProductArgs& args, uint8_t* shared)
        : c(args), acts(shared + (1024 - shared_address(shared) % 1024) % 1024), weights(acts + AP * ACTS_PIECE) {
        acts_full = shared_address(weights + WP * Shape::WEIGHT_PIECE);
        acts_empty = acts_full + 8 * AP;
        weights_full = acts_empty + 8 * AP;
        weights_empty = weights_full + 8 * WP;
    }

    INLINE void produce(uint32_t begin, uint32_t end, int lane) const {
        Turn<WP> w;
        Turn<AP> x;
        // Both rings start empty, so the first round waits for nothing: a wait for the other parity passes.
        bool waited = false;
        for (uint32_t unit = begin; unit < end; unit++) {
            const uint32_t block = unit / c.a.k_tiles, k = unit % c.a.k_tiles, tokens = block % c.token_blocks;
            const RowBlock at = find_row_block(c.a, block / c.token_blocks, Common::ROW_TILES);
            const uint8_t* mine = lane < PREFILL_TILES ? c.tile(at, lane, k) : nullptr;
            const uint32_t count = __popc(__ballot_sync(WARP, mine != nullptr));
#pragma unroll
            for (int piece = 0; piece < 4; piece++) {
                if (piece % (4 / Shape::PARTS) == 0) {
                    const uint32_t bar = weights_full + 8 * w.stage;
                    barrier_wait(weights_empty + 8 * w.stage, w.parity ^ 1);
                    if (lane == 0) expect_bytes(bar, count * Shape::PART_BYTES);
                    __syncwarp();
                    if (mine) {
                        const uint32_t dst = shared_address(weights) + w.stage * Shape::WEIGHT_PIECE + lane * Shape::PART_BYTES;
                        const int part = Shape::PARTS == 4 ? piece : 0;
                        bulk_copy(dst, mine + part * Shape::PART_BYTES, Shape::PART_BYTES, bar);
                    }
                    w.next();
                }
                if (!waited) wait_for_last();
                waited = true;
                if (lane == 0) {
                    const uint32_t bar = acts_full + 8 * x.stage;
                    barrier_wait(acts_empty + 8 * x.stage, x.parity ^ 1);
                    expect_bytes(bar, ACTS_PIECE);
                    const size_t group = static_cast<size_t>(4 * k + piece) * c.a.groups + tokens * PREFILL_GROUPS;
                    bulk_copy(shared_address(acts) + x.stage * ACTS_PIECE, c.a.acts + group * GROUP_BYTES, ACTS_PIECE, bar);
                }
                x.next();
                __syncwarp();
            }
        }
    }

    INLINE void consume(uint32_t begin, uint32_t end, int warp, int lane) const {
        wait_for_last();
        float sum[2][PREFILL_GROUPS][4] = {};
        auto& flat = reinterpret_cast<float(&)[2][4 * PREFILL_GROUPS]>(sum);
        Turn<WP> w;
        Turn<AP> x;
        for (uint32_t unit = begin; unit < end; unit++) {
            Half<T> half[2];
#pragma unroll
            for (int i = 0; i < 8; i++) {  // words of a lane's columns
                if (i % (8 / Shape::PARTS) == 0) barrier_wait(weights_full + 8 * w.stage, w.parity);
                const uint8_t* tiles = weights + w.stage * Shape::WEIGHT_PIECE + 2 * warp * Shape::PART_BYTES;
                uint32_t o[2][2][4];
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const uint8_t* tile = tiles + m * Shape::PART_BYTES;
                    if constexpr (T::FLOATS) {
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const uint4 v = shared16(tile, (2 * r + i % 2) * 32 + lane);
                            o[m][r][0] = v.x, o[m][r][1] = v.y, o[m][r][2] = v.z, o[m][r][3] = v.w;
                        }
                    } else {
                        if (i % 4 == 0) half[m].load(tile, lane, i / 4);
                        half[m].word(0, i % 4, o[m][0]);
                        half[m].word(1, i % 4, o[m][1]);
                    }
                }
                if (i % 2 == 0) barrier_wait(acts_full + 8 * x.stage, x.parity);
                const uint64_t b = rows128(shared_address(acts) + x.stage * ACTS_PIECE + i % 2 * 64);
                products_fence();
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    product64x128<T::BF16>(flat[m], o[m][0][0], o[m][1][0], o[m][0][1], o[m][1][1], b);
                    product64x128<T::BF16>(flat[m], o[m][0][2], o[m][1][2], o[m][0][3], o[m][1][3], b + 2);
                }
                products_commit();
                // The products of the word before are done: its registers and, every second time, its piece are free.
                products_wait<1>();
                if (i % 2 == 0 && (i > 0 || unit > begin) && lane == 0) {
                    barrier_arrive(acts_empty + 8 * (x.stage == 0 ? AP - 1 : x.stage - 1));
                }
                if (i % 2 == 1) x.next();
                if (i % (8 / Shape::PARTS) == 8 / Shape::PARTS - 1) {
                    __syncwarp();
                    if (lane == 0) barrier_arrive(weights_empty + 8 * w.stage);
                    w.next();
                }
            }
            const uint32_t k = unit % c.a.k_tiles;
            if (k + 1 != c.a.k_tiles && unit + 1 != end) continue;
            products_wait<0>();
            c.finish(unit, warp, lane, sum);
        }
    }

    INLINE void run() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (threadIdx.x == 0) {
            for (int i = 0; i < AP; i++) {
                barrier_init(acts_full + 8 * i, 1);
                barrier_init(acts_empty + 8 * i, PREFILL_WARPS);
            }
            for (int i = 0; i < WP; i++) {
                barrier_init(weights_full + 8 * i, 1);
                barrier_init(weights_empty + 8 * i, PREFILL_WARPS);
            }
            barrier_init_done();
        }
        __syncthreads();
        const uint32_t begin = c.cut.begin(blockIdx.x), end = c.cut.begin(blockIdx.x + 1);
        if (warp >= PREFILL_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == PREFILL_WARPS) produce(begin, end, lane);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consume(begin, end, warp, lane);
        }
    }
};

#define PREFILL(NAME, T, GATED)                                                                              \
    extern "C" __global__ void __launch_bounds__(PREFILL_THREADS, 1) NAME(const __grid_constant__ ProductArgs a) { \
        DYNAMIC_SHARED(uint8_t, shared);                                                                     \
        Prefill<T, GATED>(a, shared).run();                                                                  \
    }
#define PREFILL_TYPE(NAME, T)            \
    PREFILL(prefill_##NAME, T, false)    \
    PREFILL(prefill_glu_##NAME, T, true)
