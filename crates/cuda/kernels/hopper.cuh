// Products of many rows on Hopper: wgmma with weights that become 16-bit numbers in registers on their way from tiles.
//
// A block of threads does 256 rows of weights (16 row tiles; of gated products 128 of gate and of up) times 16 to 128 tokens.
// One warp fetches, two warpgroups multiply, each 2 x 64 rows. Weights and activations come in rings of their own: weights a
// k tile at once (floats a quarter of one), activations 64 columns. While the tensor cores work on one word of columns, the
// next words of weights are decoded. With few tokens all this is bound by reading weights, with many by the tensor cores.
#pragma once
#include "acts.cuh"
#include "products.cuh"
#include "wgmma.cuh"

constexpr int HOPPER_WARPS = 8;
constexpr int HOPPER_THREADS = 384;
constexpr int HOPPER_TILES = 2 * HOPPER_WARPS;  // row tiles of a block
constexpr int HOPPER_SHARED = 225 * 1024;       // what the rings may take

template <class T, int N> struct HopperShape {
    static constexpr int PARTS = T::FLOATS ? 4 : 1;  // of a tile that are fetched apart
    static constexpr int PART_BYTES = TILE_BYTES<T> / PARTS;
    static constexpr int ACTS_PIECE = N * 128, ACTS_PIECES = N > 64 ? 5 : 6;
    static constexpr int WEIGHT_PIECE = HOPPER_TILES * PART_BYTES;
    static constexpr int FIT = (HOPPER_SHARED - ACTS_PIECES * ACTS_PIECE) / WEIGHT_PIECE;
    static constexpr int WEIGHT_PIECES = FIT < 4 ? FIT : 4;
};

// A place in a ring.
template <int PIECES> struct Turn {
    uint32_t stage = 0, parity = 0;
    INLINE void next() {
        if (++stage == PIECES) stage = 0, parity ^= 1;
    }
};

template <class T, int N, bool GATED> struct Hopper {
    using Shape = HopperShape<T, N>;
    static constexpr int NT = N / GROUP_ROWS, PARTS = Shape::PARTS;
    static constexpr int WP = Shape::WEIGHT_PIECES, AP = Shape::ACTS_PIECES;
    using Common = Tiled<T, NT, GATED, HOPPER_WARPS>;

    const Common c;
    uint8_t *acts, *weights;
    uint32_t acts_full, acts_empty, weights_full, weights_empty;

    // Swizzled rows want addresses that are multiples of 1024.
    INLINE Hopper(const ProductArgs& args, uint8_t* shared)
        : c(args), acts(shared + (1024 - shared_address(shared) % 1024) % 1024), weights(acts + AP * Shape::ACTS_PIECE) {
        acts_full = shared_address(weights + WP * Shape::WEIGHT_PIECE);
        acts_empty = acts_full + 8 * AP;
        weights_full = acts_empty + 8 * AP;
        weights_empty = weights_full + 8 * WP;
    }

    // Both rings start empty, so the first round waits for nothing: a wait for the other parity passes.
    INLINE void fetch_weights(Turn<WP>& turn, const uint8_t* mine, uint32_t bytes, int part, int lane) const {
        const uint32_t bar = weights_full + 8 * turn.stage;
        barrier_wait(weights_empty + 8 * turn.stage, turn.parity ^ 1);
        if (lane == 0) expect_bytes(bar, bytes);
        __syncwarp();
        if (mine) {
            const uint32_t dst = shared_address(weights) + turn.stage * Shape::WEIGHT_PIECE + lane * Shape::PART_BYTES;
            bulk_copy(dst, mine + part * Shape::PART_BYTES, Shape::PART_BYTES, bar);
        }
        turn.next();
    }
    INLINE void fetch_acts(Turn<AP>& turn, uint32_t piece, uint32_t tokens, int lane) const {
        if (lane == 0) {
            const uint32_t bar = acts_full + 8 * turn.stage;
            barrier_wait(acts_empty + 8 * turn.stage, turn.parity ^ 1);
            expect_bytes(bar, Shape::ACTS_PIECE);
            const size_t group = static_cast<size_t>(piece) * c.a.groups + tokens * NT;
            bulk_copy(shared_address(acts) + turn.stage * Shape::ACTS_PIECE, c.a.acts + group * GROUP_BYTES, Shape::ACTS_PIECE, bar);
        }
        turn.next();
        __syncwarp();
    }
    // Weights run ahead of activations by their own ring, and do not wait for the kernel before.
    INLINE void produce_weights(uint32_t begin, uint32_t end, int lane) const {
        Turn<WP> turn;
        for (uint32_t unit = begin; unit < end; unit++) {
            const uint32_t block = unit / c.a.k_tiles, k = unit - block * c.a.k_tiles;
            const RowBlock at = find_row_block(c.a, block / c.token_blocks, Common::ROW_TILES);
            const uint8_t* mine = lane < HOPPER_TILES ? c.tile(at, lane, k) : nullptr;
            const uint32_t bytes = __popc(__ballot_sync(WARP, mine != nullptr)) * Shape::PART_BYTES;
#pragma unroll
            for (int part = 0; part < PARTS; part++) fetch_weights(turn, mine, bytes, part, lane);
        }
    }
    INLINE void produce_acts(uint32_t begin, uint32_t end, int lane) const {
        Turn<AP> turn;
        wait_for_last();
        for (uint32_t unit = begin; unit < end; unit++) {
            const uint32_t block = unit / c.a.k_tiles, k = unit - block * c.a.k_tiles;
#pragma unroll
            for (int piece = 0; piece < 4; piece++) fetch_acts(turn, 4 * k + piece, block % c.token_blocks, lane);
        }
    }

    INLINE void consume(uint32_t begin, uint32_t end, int warp, int lane) const {
        wait_for_last();
        float sum[2][NT][4] = {};
        auto& flat = reinterpret_cast<float(&)[2][4 * NT]>(sum);
        Turn<WP> w;
        Turn<AP> x;
        for (uint32_t unit = begin; unit < end; unit++) {
            Half<T> half[2];
#pragma unroll
            for (int i = 0; i < 8; i++) {  // words of a lane's columns
                if (i % (8 / PARTS) == 0) barrier_wait(weights_full + 8 * w.stage, w.parity);
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
                const uint64_t b = rows128(shared_address(acts) + x.stage * Shape::ACTS_PIECE + i % 2 * 64);
                products_fence();
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const uint32_t even[4] = {o[m][0][0], o[m][1][0], o[m][0][1], o[m][1][1]};
                    const uint32_t odd[4] = {o[m][0][2], o[m][1][2], o[m][0][3], o[m][1][3]};
                    Product<N, T::BF16>::add(flat[m], even, b);
                    Product<N, T::BF16>::add(flat[m], odd, b + 2);
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
            if ((unit + 1) % c.a.k_tiles != 0 && unit + 1 != end) continue;
            pin(flat[0]);
            pin(flat[1]);
            c.finish(unit, warp, sum);
            pin(flat[0]);
            pin(flat[1]);
        }
    }

    INLINE void run() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (threadIdx.x == 0) {
            for (int i = 0; i < AP; i++) {
                barrier_init(acts_full + 8 * i, 1);
                barrier_init(acts_empty + 8 * i, HOPPER_WARPS);
            }
            for (int i = 0; i < WP; i++) {
                barrier_init(weights_full + 8 * i, 1);
                barrier_init(weights_empty + 8 * i, HOPPER_WARPS);
            }
            barrier_init_done();
        }
        __syncthreads();
        let_next_start();
        const uint32_t begin = c.cut.begin(blockIdx.x), end = c.cut.begin(blockIdx.x + 1);
        if (warp >= HOPPER_WARPS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (warp == HOPPER_WARPS) produce_weights(begin, end, lane);
            if (warp == HOPPER_WARPS + 1) produce_acts(begin, end, lane);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consume(begin, end, warp, lane);
        }
    }
};

#define HOPPER(NAME, T, N, GATED)                                                                                 \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1) NAME(const __grid_constant__ ProductArgs a) { \
        DYNAMIC_SHARED(uint8_t, shared);                                                                          \
        Hopper<T, N, GATED>(a, shared).run();                                                                     \
    }
#define HOPPER_TYPE(NAME, T)                   \
    HOPPER(hopper_##NAME##_16, T, 16, false)   \
    HOPPER(hopper_##NAME##_32, T, 32, false)   \
    HOPPER(hopper_##NAME##_64, T, 64, false)   \
    HOPPER(hopper_##NAME##_128, T, 128, false) \
    HOPPER(hopper_glu_##NAME##_16, T, 16, true)  \
    HOPPER(hopper_glu_##NAME##_32, T, 32, true)  \
    HOPPER(hopper_glu_##NAME##_64, T, 64, true)  \
    HOPPER(hopper_glu_##NAME##_128, T, 128, true)
