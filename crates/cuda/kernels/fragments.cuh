// From tiles to the left matrix of tensor products: registers that hold 16-bit weights.
//
// A `Row` has what a lane needs for its columns of one of its rows: scales of all 64 (`scales`), codes of 32 at a time
// (`codes` of a half). `word(half, i, o)` gives the weights of columns 8i..8i+7 of it, times SCALE of the tile type:
// o[0] = (c0, c1), o[1] = (c2, c3), o[2] = (c4, c5), o[3] = (c6, c7).
// Two steps of 16 columns come of the words of two rows: (o of row 0)[0], (o of row 1)[0], [1] of both; then [2], [3].
// Codes become f16 exactly, in the low bits of 1024; then one multiplication and addition rounds once.
#pragma once
#include "tiles.cuh"

constexpr uint32_t K1024 = 0x64006400u;
constexpr uint32_t CODE4 = 0x000f000fu;

INLINE __half2 twice(float v) { return __float2half2_rn(v); }
INLINE uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
INLINE uint4 shared16(const uint8_t* p, int i) { return reinterpret_cast<const uint4*>(p)[i]; }
INLINE uint32_t shared4(const uint8_t* p, int i) { return reinterpret_cast<const uint32_t*>(p)[i]; }
INLINE uint32_t shared2(const uint8_t* p, int i) { return reinterpret_cast<const uint16_t*>(p)[i]; }

// (v & mask) | bits in one instruction, which the compiler does not find where both are constants.
INLINE uint32_t masked(uint32_t v, uint32_t mask, uint32_t bits) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(bits));
    return r;
}
// code * scale + min of codes in the low bits of 1024.
INLINE uint32_t affine(uint32_t codes, __half2 scale, __half2 min) {
    return as_word(__hfma2(__hsub2(as_half2(codes), as_half2(K1024)), scale, min));
}
// Columns 8i..8i+7 of a half are quartets 2i and 2i + 1: those words of the chunk, with the bits that are wanted lowest.
struct Quartets {
    uint32_t a, b;
};
INLINE Quartets quartets(const uint4& q, int i) { return i % 2 ? Quartets{q.z, q.w} : Quartets{q.x, q.y}; }
// 8 half-byte codes. The high ones of each byte are 16 times too large and become right by exact steps.
INLINE void affine4(const uint4& q, int i, __half2 scale, __half2 min, uint32_t (&o)[4]) {
    const __half2 sixteenth = as_half2(0x2c002c00u), minus64 = as_half2(0xd400d400u);
    auto codes = [&](uint32_t w) {
        if (i < 2) return affine(masked(w, CODE4, K1024), scale, min);
        return as_word(__hfma2(__hfma2(as_half2(masked(w, 0x00f000f0u, K1024)), sixteenth, minus64), scale, min));
    };
    const Quartets w = quartets(q, i);
    o[0] = codes(w.a), o[1] = codes(w.b), o[2] = codes(w.a >> 8), o[3] = codes(w.b >> 8);
}
// 8 signed bytes, c0 c4 c1 c5 and c2 c6 c3 c7.
INLINE void scaled_bytes(uint32_t a, uint32_t b, __half2 scale, uint32_t (&o)[4]) {
    const __half2 offset = as_half2(0x64806480u);  // 1024 + 128
    const uint32_t high = 0x64646464u;
    a ^= 0x80808080u;
    b ^= 0x80808080u;
    o[0] = as_word(__hmul2(__hsub2(as_half2(__byte_perm(a, high, 0x4240)), offset), scale));
    o[1] = as_word(__hmul2(__hsub2(as_half2(__byte_perm(b, high, 0x4240)), offset), scale));
    o[2] = as_word(__hmul2(__hsub2(as_half2(__byte_perm(a, high, 0x4341)), offset), scale));
    o[3] = as_word(__hmul2(__hsub2(as_half2(__byte_perm(b, high, 0x4341)), offset), scale));
}

// Scales in pairs of f16: those of two halves, or of 16 columns each. SCALE is a power of two, so products with it are exact.
INLINE __half2 pair_of(__half2 pair, int i) { return i == 0 ? __low2half2(pair) : __high2half2(pair); }
template <class T> INLINE __half2 scaled(__half2 v) { return __hmul2(v, twice(T::SCALE)); }
// Bytes i and i + 1 of a word, for i = 0 or 2, without and with sign.
INLINE __half2 byte_pair(uint32_t v, int i) {
    return __hsub2(as_half2(__byte_perm(v, 0x64646464u, i == 0 ? 0x4140 : 0x4342)), as_half2(K1024));
}
INLINE __half2 signed_byte_pair(uint32_t v, int i) {
    const __half2 offset = as_half2(0x64806480u);  // 1024 + 128
    return __hsub2(as_half2(__byte_perm(v ^ 0x80808080u, 0x64646464u, i == 0 ? 0x4140 : 0x4342)), offset);
}

template <class T> struct Row;

// Scales and minimums of Q4_K and Q5_K, which begin at `s`, of row `r`.
template <class T> struct AffineK {
    __half2 scale, min;
    INLINE void load(const uint8_t* s, int lane, int r) {
        uint32_t scales, mins;
        scales6(shared4(s, lane), shared2(s + 128, lane), scales, mins);
        const __half2 d = scaled<T>(as_half2(shared4(s + 192, lane / 4 + 8 * r)));
        scale = __hmul2(byte_pair(scales, 2 * r), __low2half2(d));
        min = __hmul2(byte_pair(mins, 2 * r), __hneg2(__high2half2(d)));
    }
};

template <> struct Row<TileQ4_K> {
    uint4 q;
    AffineK<TileQ4_K> a;
    INLINE void scales(const uint8_t* tile, int lane, int r) { a.load(tile + 2048, lane, r); }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) { q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane)); }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        affine4(q, i, pair_of(a.scale, half), pair_of(a.min, half), o);
    }
};

template <> struct Row<TileQ5_K> {
    uint4 q;
    uint32_t fifths;
    AffineK<TileQ5_K> a;
    INLINE void scales(const uint8_t* tile, int lane, int r) { a.load(tile + 2560, lane, r); }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) {
        q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane));
        fifths = shared4(tile + 2048, chunk_of(lane) * 4 + 2 * r + half);
    }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        constexpr uint32_t BIT = 0x00100010u;
        const Quartets w = quartets(q, i);
        const uint32_t h = fifths;
        const int k = 2 * i, high = i / 2 * 4;
        const uint32_t x = k < 4 ? h << (4 - k) : h >> (k - 4), y = k < 3 ? h << (3 - k) : h >> (k - 3);
        const __half2 scale = pair_of(a.scale, half), min = pair_of(a.min, half);
        o[0] = affine(masked(w.a >> high, CODE4, masked(x, BIT, K1024)), scale, min);
        o[1] = affine(masked(w.b >> high, CODE4, masked(y, BIT, K1024)), scale, min);
        o[2] = affine(masked(w.a >> (8 + high), CODE4, masked(h >> (4 + k), BIT, K1024)), scale, min);
        o[3] = affine(masked(w.b >> (8 + high), CODE4, masked(h >> (5 + k), BIT, K1024)), scale, min);
    }
};

template <> struct Row<TileQ6_K> {
    uint4 q, high;
    __half2 scale[2];
    INLINE void scales(const uint8_t* tile, int lane, int r) {
        const __half2 d = scaled<TileQ6_K>(as_half2(shared2(tile + 3328, lane / 4 + 8 * r) * 0x10001u));
        const uint32_t bytes = shared4(tile + 3072, 2 * lane + r);
#pragma unroll
        for (int half = 0; half < 2; half++) scale[half] = __hmul2(signed_byte_pair(bytes, 2 * half), d);
    }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) {
        q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane));
        high = shared16(tile + 2048, r * 32 + chunk_of(lane));
    }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        constexpr uint32_t HIGH = 0x00300030u;
        const __half2 offset = as_half2(0x64206420u);  // 1024 + 32
        const Quartets w = quartets(q, i), h = quartets(high, i);
        const __half2 s = pair_of(scale[half], i / 2);
        const int code = i / 2 * 4, pair = 4 * half + i / 2 * 2;
        auto weights = [&](uint32_t codes, uint32_t pairs) {
            return as_word(__hmul2(__hsub2(as_half2(masked(codes, CODE4, masked(pairs, HIGH, K1024))), offset), s));
        };
        auto low = [&](uint32_t v) { return pair < 4 ? v << (4 - pair) : v >> (pair - 4); };
        o[0] = weights(w.a >> code, low(h.a)), o[1] = weights(w.b >> code, low(h.b));
        o[2] = weights(w.a >> (8 + code), h.a >> (4 + pair)), o[3] = weights(w.b >> (8 + code), h.b >> (4 + pair));
    }
};

template <> struct Row<TileQ4_0> {
    uint4 q;
    __half2 scale;
    INLINE void scales(const uint8_t* tile, int lane, int r) {
        scale = scaled<TileQ4_0>(as_half2(shared4(tile + 2048, 2 * lane + r)));
    }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) { q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane)); }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        const __half2 s = pair_of(scale, half);
        affine4(q, i, s, __hmul2(s, twice(-8.0f)), o);
    }
};

template <> struct Row<TileQ4_1> {
    uint4 q;
    __half2 scale, min;
    INLINE void scales(const uint8_t* tile, int lane, int r) {
        const uint2 d = reinterpret_cast<const uint2*>(tile + 2048)[2 * lane + r];  // (scale, minimum) of each half
        scale = scaled<TileQ4_1>(as_half2(__byte_perm(d.x, d.y, 0x5410)));
        min = scaled<TileQ4_1>(as_half2(__byte_perm(d.x, d.y, 0x7632)));
    }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) { q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane)); }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        affine4(q, i, pair_of(scale, half), pair_of(min, half), o);
    }
};

template <> struct Row<TileMXFP4> {
    uint4 q;
    __half2 scale;
    INLINE void scales(const uint8_t* tile, int lane, int r) {
        const uint32_t e = shared2(tile + 2048, 2 * lane + r);
        scale = __floats2half2_rn(TileMXFP4::SCALE * fp4_scale(e & 0xff), TileMXFP4::SCALE * fp4_scale(e >> 8));
    }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) { q = shared16(tile, (2 * r + half) * 32 + chunk_of(lane)); }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        const uint32_t w = word_of(q, i);
        scaled_bytes(fp4_bytes(w), fp4_bytes(w >> 16), pair_of(scale, half), o);
    }
};

template <> struct Row<TileQ8_0> {
    uint4 q[2];
    __half2 scale;
    INLINE void scales(const uint8_t* tile, int lane, int r) {
        const uint8_t* d = tile + 2048 + 2 * (2 * lane + r);
        const uint32_t low = shared2(d, 0), high = shared2(d + TileQ8_0::STEP_BYTES, 0);
        scale = scaled<TileQ8_0>(as_half2(low | high << 16));
    }
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) {
        const uint8_t* step = tile + half * TileQ8_0::STEP_BYTES;
        q[0] = shared16(step, 2 * r * 32 + chunk_of(lane));
        q[1] = shared16(step, (2 * r + 1) * 32 + chunk_of(lane));
    }
    INLINE void word(int half, int i, uint32_t (&o)[4]) const {
        const uint4& w = q[i / 2];
        scaled_bytes(i % 2 ? w.z : w.x, i % 2 ? w.w : w.y, pair_of(scale, half), o);
    }
};

template <bool B> struct Row<TileFloat<B>> {
    const uint8_t* at;
    INLINE void scales(const uint8_t*, int, int) {}
    INLINE void codes(const uint8_t* tile, int lane, int half, int r) { at = tile + half * 4096 + r * 1024 + chunk_of(lane) * 16; }
    INLINE void word(int, int i, uint32_t (&o)[4]) const {
        const uint4 w = *reinterpret_cast<const uint4*>(at + i / 2 * 2048 + i % 2 * 512);
        o[0] = w.x, o[1] = w.y, o[2] = w.z, o[3] = w.w;
    }
};
