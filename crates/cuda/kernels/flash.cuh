// Attention of many rows: prompts. Scores never leave the registers.
//
// A block has 64 rows of one sequence and one head, a warp 16 of them. Keys and values come in pieces of 64 positions, two
// pieces in shared memory, 16-byte chunks of a row in the order chunk ^ row % 8. Softmax runs along with a maximum of each
// row; pieces are taken in order, so sums are the same at every run.
#pragma once
#include "attend.cuh"

constexpr int FLASH_ROWS = 64;
constexpr int FLASH_KEYS = 64;
constexpr int FLASH_THREADS = 128;

template <uint32_t TYPE, int DIM> struct Flash {
    static constexpr bool BF16 = Kv<TYPE>::BF16;
    static constexpr int ROW_BYTES = 2 * DIM, CHUNKS = DIM / 8;
    static constexpr int PIECE = FLASH_KEYS * ROW_BYTES;
    static constexpr int BYTES = FLASH_ROWS * ROW_BYTES + 4 * PIECE;
    static constexpr bool KEEP_Q = DIM <= 128;  // in registers
    static constexpr int HEAD_BYTES = TYPE == KV_Q8_0 ? DIM * 34 : DIM * 64;

    const FlashArgs& a;
    uint8_t* const shared;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.y;
    uint32_t kv_head, first_row, rows, position;  // of the first row
    uint32_t from, last;                          // positions that any row sees
    const uint32_t* table;

    INLINE Flash(const FlashArgs& args, uint8_t* memory) : a(args), shared(memory) {
        // Late tiles see most positions, so they start first.
        const uint32_t tile = *a.tile_count - 1 - blockIdx.x;
        first_row = a.tiles[2 * tile], rows = a.tiles[2 * tile + 1];
        position = a.positions[first_row];
        last = position + rows - 1;
        from = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
        kv_head = head / (a.heads / a.kv_heads);
        const uint32_t sequence = a.sequences[first_row];
        table = a.blocks + static_cast<size_t>(sequence) * a.max_blocks - a.first[sequence];
    }
    INLINE static int at(int row, int chunk) { return row * ROW_BYTES + ((chunk ^ row % 8) * 16); }
    INLINE uint8_t* keys(int buffer) const { return shared + FLASH_ROWS * ROW_BYTES + buffer * 2 * PIECE; }
    INLINE uint8_t* values(int buffer) const { return keys(buffer) + PIECE; }

    // Where the head's keys of the two cache blocks of a piece lie; anywhere for blocks that no row sees.
    struct Bases {
        const uint8_t* k[FLASH_KEYS / BLOCK_TOKENS];
    };
    INLINE Bases bases(uint32_t start) const {
        Bases b;
#pragma unroll
        for (int i = 0; i < FLASH_KEYS / BLOCK_TOKENS; i++) {
            const uint32_t first = start + i * BLOCK_TOKENS;
            b.k[i] = a.cache + kv_head * HEAD_BYTES;
            if (first <= last && first + BLOCK_TOKENS > from) b.k[i] += static_cast<size_t>(table[first / BLOCK_TOKENS]) * a.block_bytes;
        }
        return b;
    }
    // All threads fetch a piece, each one chunk of some rows.
    INLINE void fetch(uint32_t start, int buffer, const Bases& b) const {
        constexpr int ROWS = FLASH_THREADS / CHUNKS;  // at once
        static_assert(BLOCK_TOKENS % ROWS == 0, "a row's block is known to the compiler");
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
#pragma unroll
        for (int i = 0; i < FLASH_KEYS / ROWS; i++) {
            const int row = first + i * ROWS, in_block = first + i * ROWS % BLOCK_TOKENS;
            const uint8_t* k = b.k[i * ROWS / BLOCK_TOKENS];
            const bool held = start + row >= from && start + row <= last;  // the others' memory may hold anything
            if constexpr (TYPE == KV_Q8_0) {
                Kv<TYPE> e;
                e.clear();
                if (held) e.load(k, DIM, in_block, 8 * chunk);
                *reinterpret_cast<uint4*>(keys(buffer) + at(row, chunk)) = e.pairs();
                e.clear();
                if (held) e.load(k + a.v_offset, DIM, in_block, 8 * chunk);
                *reinterpret_cast<uint4*>(values(buffer) + at(row, chunk)) = e.pairs();
            } else {
                const uint32_t o = (in_block * DIM + 8 * chunk) * 2;
                copy16_or_zero(shared_address(keys(buffer) + at(row, chunk)), k + o, held);
                copy16_or_zero(shared_address(values(buffer) + at(row, chunk)), k + a.v_offset + o, held);
            }
        }
        copies_commit();
    }
    INLINE void fetch_queries() const {
        for (int i = threadIdx.x; i < FLASH_ROWS * CHUNKS; i += FLASH_THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (row < static_cast<int>(rows)) {
                const size_t o = (static_cast<size_t>(first_row + row) * a.heads + head) * DIM + 8 * chunk;
                const float4 x = __ldcg(reinterpret_cast<const float4*>(a.q + o));
                const float4 y = __ldcg(reinterpret_cast<const float4*>(a.q + o) + 1);
                v = make_uint4(pack_pair<BF16>(x.x, x.y), pack_pair<BF16>(x.z, x.w), pack_pair<BF16>(y.x, y.y),
                               pack_pair<BF16>(y.z, y.w));
            }
            *reinterpret_cast<uint4*>(shared + at(row, chunk)) = v;
        }
    }
    // Queries of this warp, 16 dimensions from 16 * step on, as a left matrix.
    INLINE void queries(int step, uint32_t (&q)[4]) const {
        load_matrices(shared_address(shared + at(16 * warp + lane % 16, 2 * step + lane / 16)), q);
    }
    // 2 to the power of x.
    INLINE static float power(float x) {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }

    INLINE void run() const {
        wait_for_last();
        let_next_start();
        const uint32_t begin = from / FLASH_KEYS * FLASH_KEYS, pieces = (last - begin) / FLASH_KEYS + 1;
        Bases next = bases(begin);
        fetch(begin, 0, next);
        next = bases(begin + FLASH_KEYS);
        fetch_queries();
        __syncthreads();
        uint32_t kept[KEEP_Q ? DIM / 16 : 1][4];
        if constexpr (KEEP_Q) {
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) queries(i, kept[i]);
        }
        float out[DIM / 8][4] = {}, top[2] = {LOWEST, LOWEST}, sum[2] = {0, 0};
        for (uint32_t piece = 0; piece < pieces; piece++) {
            const uint32_t start = begin + piece * FLASH_KEYS;
            if (piece + 1 < pieces) {
                fetch(start + FLASH_KEYS, (piece + 1) % 2, next);
                next = bases(start + 2 * FLASH_KEYS);
                copies_wait<1>();
            } else {
                copies_wait<0>();
            }
            __syncthreads();
            float s[8][4] = {};
            const uint8_t* k = keys(piece % 2);
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) {
                uint32_t q[2][4];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if constexpr (KEEP_Q) {
#pragma unroll
                        for (int e = 0; e < 4; e++) q[j][e] = kept[2 * i + j][e];
                    } else {
                        queries(2 * i + j, q[j]);
                    }
                }
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    uint32_t b[4];
                    load_matrices(shared_address(k + at(8 * n + lane % 8, 4 * i + lane / 8)), b);
                    mma<BF16>(s[n], q[0][0], q[0][1], q[0][2], q[0][3], b[0], b[1]);
                    mma<BF16>(s[n], q[1][0], q[1][1], q[1][2], q[1][3], b[2], b[3]);
                }
            }
            // Element e of s[n]: row g + 8 * (e / 2), position start + 8n + 2t + e % 2.
            const uint32_t mine = position + 16 * warp + g;
            const bool whole = start + FLASH_KEYS - 1 <= position + 16 * warp &&
                               (!a.window || start + a.window > position + 16 * warp + 15);
            float factor = a.scale * LOG2_E;
            if (a.softcap > 0) {
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) s[n][e] = a.softcap * tanhf(s[n][e] * a.scale / a.softcap);
                }
                factor = LOG2_E;
            }
            if (!whole) {
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const uint32_t p = start + 8 * n + 2 * t + e % 2, row = mine + e / 2 * 8;
                        if (p > row || (a.window && p + a.window <= row)) s[n][e] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float most = s[0][2 * r];
#pragma unroll
                for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                most = fmaxf(most, __shfl_xor_sync(WARP, most, 1));
                most = fmaxf(most, __shfl_xor_sync(WARP, most, 2));
                // Finite, so that a row that sees nothing of this piece gets zeros.
                const float new_top = fmaxf(top[r], most * factor);
                if (__any_sync(WARP, new_top > top[r])) {
                    const float keep = power(top[r] - new_top);
                    top[r] = new_top;
                    sum[r] *= keep;
#pragma unroll
                    for (int i = 0; i < DIM / 8; i++) {
                        out[i][2 * r] *= keep;
                        out[i][2 * r + 1] *= keep;
                    }
                }
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        s[n][2 * r + j] = power(s[n][2 * r + j] * factor - top[r]);
                        sum[r] += s[n][2 * r + j];
                    }
                }
            }
            const uint8_t* v = values(piece % 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {  // 16 positions
                const uint32_t p0 = pack_pair<BF16>(s[2 * j][0], s[2 * j][1]), p1 = pack_pair<BF16>(s[2 * j][2], s[2 * j][3]);
                const uint32_t p2 = pack_pair<BF16>(s[2 * j + 1][0], s[2 * j + 1][1]);
                const uint32_t p3 = pack_pair<BF16>(s[2 * j + 1][2], s[2 * j + 1][3]);
#pragma unroll
                for (int i = 0; i < DIM / 16; i++) {
                    uint32_t b[4];
                    load_matrices_transposed(shared_address(v + at(16 * j + lane % 16, 2 * i + lane / 16)), b);
                    mma<BF16>(out[2 * i], p0, p1, p2, p3, b[0], b[1]);
                    mma<BF16>(out[2 * i + 1], p0, p1, p2, p3, b[2], b[3]);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(WARP, sum[r], 1);
            sum[r] += __shfl_xor_sync(WARP, sum[r], 2);
            float factor = 1;
            if (a.sinks) {
                const float sink = a.sinks[head] * LOG2_E, new_top = fmaxf(top[r], sink);
                factor = exp2f(top[r] - new_top);
                sum[r] = sum[r] * factor + exp2f(sink - new_top);
            }
            factor /= sum[r];
            const uint32_t row = 16 * warp + g + 8 * r;
            if (row >= rows) continue;
            float* o = a.out + (static_cast<size_t>(first_row + row) * a.heads + head) * DIM + 2 * t;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                *reinterpret_cast<float2*>(o + 8 * i) = make_float2(out[i][2 * r] * factor, out[i][2 * r + 1] * factor);
            }
        }
    }
};

#define FLASH(NAME, TYPE, DIM)                                                                            \
    extern "C" __global__ void __launch_bounds__(FLASH_THREADS) NAME(const __grid_constant__ FlashArgs a) { \
        DYNAMIC_SHARED(uint8_t, shared);                                                                  \
        if (blockIdx.x >= *a.tile_count) return;                                                          \
        Flash<TYPE, DIM>(a, shared).run();                                                                \
    }
#define FLASH_DIMS(NAME, TYPE)         \
    FLASH(flash_##NAME##_64, TYPE, 64)   \
    FLASH(flash_##NAME##_128, TYPE, 128) \
    FLASH(flash_##NAME##_256, TYPE, 256)
