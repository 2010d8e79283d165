// From GGUF rows to the tiles of tiles.cuh: a warp makes one tile. Runs once, at load.
#ifndef WOOTZ_EMULATE
#include "tiles.cuh"

INLINE uint32_t u16_of(const uint8_t* p) { return p[0] | uint32_t(p[1]) << 8; }

// The quartet of one of 32 columns, and its byte there.
INLINE int quartet_of(int c) { return c / 8 * 2 + quartet_place(c) / 4; }
INLINE int byte_in_quartet(int c) { return quartet_place(c) % 4; }

// What a lane reads: the blocks of one row, or nothing beyond the matrix.
struct Row {
    const uint8_t* p;  // null: zeros
    uint32_t blocks;   // left from p on
    // Block `i`, or null.
    INLINE const uint8_t* block(uint32_t i, uint32_t bytes) const { return p && i < blocks ? p + i * bytes : nullptr; }
};

// Low half-byte code of the K-quants: from each 32 bytes, 32 low ones and 32 high ones.
INLINE uint32_t nibble_of_run32(const uint8_t* q, int c) { return q[c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15; }
// Half-byte code of blocks of 32: 16 low ones, 16 high ones.
INLINE uint32_t nibble_of_16(const uint8_t* q, int c) { return q[c % 16] >> (c / 16 * 4) & 15; }

// 32 codes of 4 bits as four words, two quartets in each; of MXFP4 with 8 columns in each.
template <bool FP4 = false, class Code> INLINE uint4 words_of(Code code) {
    uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < 32; c++) {
        if (FP4) w[c / 8] |= code(c) << (4 * quartet_place(c));
        else w[quartet_of(c) % 4] |= code(c) << (8 * byte_in_quartet(c) + quartet_of(c) / 4 * 4);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

INLINE void put16(uint8_t* tile, int i, uint4 v) { reinterpret_cast<uint4*>(tile)[i] = v; }
INLINE void put4(uint8_t* p, int i, uint32_t v) { reinterpret_cast<uint32_t*>(p)[i] = v; }
INLINE void put2(uint8_t* p, int i, uint32_t v) { reinterpret_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(v); }

INLINE void scale_min6(const uint8_t* s, int g, uint32_t& scale, uint32_t& min) {
    scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}

// Q4_K and Q5_K: d, dmin, 12 bytes of scales, 32 bytes of fifth bits where HIGH, codes.
template <bool HIGH> INLINE void repack_k45(const Row (&row)[2], uint8_t* tile, int lane) {
    constexpr uint32_t BLOCK = HIGH ? 176 : 144, CODES = HIGH ? 48 : 16;
    const int g = lane / 4, t = lane % 4;
    uint8_t* scales_at = tile + (HIGH ? 2560 : 2048);
    uint32_t low = 0, high = 0, fifths[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = i / 2, half = i % 2;
        const uint8_t* b = row[r].block(0, BLOCK);
        uint4 w = make_uint4(0, 0, 0, 0);
        if (b) {
            const int first = 64 * t + 32 * half;
            w = words_of([&](int c) { return nibble_of_run32(b + CODES, first + c); });
            if (HIGH) {
                for (int c = 0; c < 32; c++) {
                    const uint32_t bit = b[16 + c] >> (first / 32) & 1;
                    fifths[i] |= bit << (8 * byte_in_quartet(c) + quartet_of(c));
                }
            }
            uint32_t scale, min;
            scale_min6(b + 4, 2 * t + half, scale, min);
            low |= (scale & 15) << (8 * i) | (min & 15) << (8 * i + 4);
            high |= (scale >> 4) << (2 * i) | (min >> 4) << (8 + 2 * i);
        }
        put16(tile, i * 32 + chunk_of(lane), w);
        if (t == 0 && half == 0) put4(scales_at + 192, g + 8 * r, b ? u16_of(b) | u16_of(b + 2) << 16 : 0);
    }
    if (HIGH) put16(tile + 2048, chunk_of(lane), make_uint4(fifths[0], fifths[1], fifths[2], fifths[3]));
    put4(scales_at, lane, low);
    put2(scales_at + 128, lane, high);
}

INLINE uint32_t code6(const uint8_t* b, int c) {
    const int part = c / 128, run = c % 128 / 32, i = c % 32;
    const uint32_t low = b[64 * part + i + run % 2 * 32] >> (run / 2 * 4) & 15;
    return low | (b[128 + 32 * part + i] >> (2 * run) & 3) << 4;
}
INLINE void repack_q6_k(const Row (&row)[2], uint8_t* tile, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint8_t* b = row[r].block(0, 210);
        uint32_t high[4] = {0, 0, 0, 0}, scales = 0;
        for (int half = 0; half < 2; half++) {
            uint4 w = make_uint4(0, 0, 0, 0);
            if (b) w = words_of([&](int c) { return code6(b, 64 * t + 32 * half + c) & 15; });
            put16(tile, (2 * r + half) * 32 + chunk_of(lane), w);
        }
        if (b) {
#pragma unroll
            for (int c = 0; c < 64; c++) {
                const int quartet = quartet_of(c % 32);
                high[quartet % 4] |= (code6(b, 64 * t + c) >> 4) << (8 * byte_in_quartet(c) + c / 32 * 4 + quartet / 4 * 2);
            }
            for (int j = 0; j < 4; j++) scales |= uint32_t(b[192 + 4 * t + j]) << (8 * j);
        }
        put16(tile + 2048, r * 32 + chunk_of(lane), make_uint4(high[0], high[1], high[2], high[3]));
        put4(tile + 3072, 2 * lane + r, scales);
        if (t == 0) put2(tile + 3328, g + 8 * r, b ? u16_of(b + 208) : 0);
    }
}

// Types of 32-element blocks with 4-bit codes: `META` bytes before the codes go to the lane's own field.
template <int META> INLINE void repack_32(const Row (&row)[2], uint8_t* tile, int lane) {
    constexpr uint32_t BLOCK = META + 16;
    const int t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t* b = row[i / 2].block(2 * t + i % 2, BLOCK);
        uint4 w = make_uint4(0, 0, 0, 0);
        if (b) w = words_of<META == 1>([&](int c) { return nibble_of_16(b + META, c); });
        put16(tile, i * 32 + chunk_of(lane), w);
        uint8_t* meta = tile + 2048 + (lane * 4 + i) * META;
        for (int k = 0; k < META; k++) meta[k] = b ? b[k] : 0;
    }
}

INLINE void repack_q8_0(const Row (&row)[2], uint8_t* tile, int lane) {
    const int t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint8_t* step = tile + half * 2176;
        for (int r = 0; r < 2; r++) {
            const uint8_t* b = row[r].block(2 * t + half, 34);
            for (int part = 0; part < 2; part++) {
                uint32_t w[4] = {0, 0, 0, 0};
                if (b) {
#pragma unroll
                    for (int c = 0; c < 16; c++) {
                        w[quartet_of(c)] |= uint32_t(b[2 + 16 * part + c]) << (8 * byte_in_quartet(c));
                    }
                }
                put16(step, (2 * r + part) * 32 + chunk_of(lane), make_uint4(w[0], w[1], w[2], w[3]));
            }
            put2(step + 2048, 2 * lane + r, b ? u16_of(b) : 0);
        }
    }
}

INLINE void repack_16bit(const Row (&row)[2], uint8_t* tile, int lane) {
    const int t = lane % 4;
    for (int r = 0; r < 2; r++) {
        for (int part = 0; part < 8; part++) {
            uint32_t w[4] = {0, 0, 0, 0};
            for (int c = 0; c < 8; c++) {
                const uint8_t* b = row[r].block(64 * t + 8 * part + c, 2);
                if (b) w[c / 2] |= u16_of(b) << (16 * (c % 2));
            }
            put16(tile + part / 2 * 2048, (2 * r + part % 2) * 32 + chunk_of(lane), make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

enum Source { SRC_Q4_K, SRC_Q5_K, SRC_Q6_K, SRC_Q4_0, SRC_Q4_1, SRC_MXFP4, SRC_Q8_0, SRC_16BIT };

// `ELEMENTS` and `BYTES` of a GGUF block.
template <Source S, int ELEMENTS, int BYTES, int TILE> INLINE void repack(const RepackArgs& a) {
    const uint32_t k = blockIdx.x, blocks = a.cols / ELEMENTS, first = k * (TILE_COLS / ELEMENTS);
    const int lane = threadIdx.x;
    uint8_t* tile = a.dst + (static_cast<size_t>(blockIdx.y) * gridDim.x + k) * TILE;
    Row row[2];
    for (int r = 0; r < 2; r++) {
        const uint32_t i = blockIdx.y * TILE_ROWS + lane / 4 + 8 * r;
        row[r].p = i < a.rows ? a.src + (static_cast<size_t>(i) * blocks + first) * BYTES : nullptr;
        row[r].blocks = blocks - first;
    }
    if constexpr (S == SRC_Q4_K) repack_k45<false>(row, tile, lane);
    else if constexpr (S == SRC_Q5_K) repack_k45<true>(row, tile, lane);
    else if constexpr (S == SRC_Q6_K) repack_q6_k(row, tile, lane);
    else if constexpr (S == SRC_Q4_0) repack_32<2>(row, tile, lane);
    else if constexpr (S == SRC_Q4_1) repack_32<4>(row, tile, lane);
    else if constexpr (S == SRC_MXFP4) repack_32<1>(row, tile, lane);
    else if constexpr (S == SRC_Q8_0) repack_q8_0(row, tile, lane);
    else repack_16bit(row, tile, lane);
}

KERNEL(32, repack_q4_k, RepackArgs) { repack<SRC_Q4_K, 256, 144, 2304>(a); }
KERNEL(32, repack_q5_k, RepackArgs) { repack<SRC_Q5_K, 256, 176, 2816>(a); }
KERNEL(32, repack_q6_k, RepackArgs) { repack<SRC_Q6_K, 256, 210, 3360>(a); }
KERNEL(32, repack_q4_0, RepackArgs) { repack<SRC_Q4_0, 32, 18, 2304>(a); }
KERNEL(32, repack_q4_1, RepackArgs) { repack<SRC_Q4_1, 32, 20, 2560>(a); }
KERNEL(32, repack_mxfp4, RepackArgs) { repack<SRC_MXFP4, 32, 17, 2176>(a); }
KERNEL(32, repack_q8_0, RepackArgs) { repack<SRC_Q8_0, 32, 34, 4352>(a); }
KERNEL(32, repack_16bit, RepackArgs) { repack<SRC_16BIT, 1, 2, 8192>(a); }
#endif
