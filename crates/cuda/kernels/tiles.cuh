// The layout of weights on the device, and how registers of it become products.
//
// A TILE is 16 rows x 256 columns, and a matrix is its tiles, those of one row of tiles together. A tile has exactly the
// bytes of its GGUF blocks, so every tile starts on 16 bytes and a run of tiles is one stream. Rows and columns beyond the
// matrix are zeros.
//
// Lane (g = lane / 4, t = lane % 4) owns columns 64t..64t+63 of rows g and g + 8 ("row r", r = 0 and 1). That is how
// tensor cores want the left matrix of a 16 x 16 product once the columns are renamed (see acts.cuh), and gives dp4a two
// rows for each load of activations. Its columns in order are two halves of 32.
//
// Bytes of 8 columns c0..c7 come in QUARTETS, words of 4 bytes: c0 c4 c1 c5, then c2 c6 c3 c7, so that a mask or a
// permutation of bytes makes 16-bit pairs of neighbours. A half has quartets 0..7.
//
// Fields of a tile, [a][b] with b innermost; `chunk` fields have 16 bytes for each lane, in the order of `chunk_of`:
//   4-bit codes   [2r + half][chunk]: low half-bytes of word i are quartet i, high ones quartet 4 + i.
//                 (MXFP4, which looks codes up: word i has 8 columns, c0 c4 c1 c5 c2 c6 c3 c7 in its half-bytes in order.)
//   Q4_K 2304     codes; u32[lane] low 4 bits of 4 scales (low half-bytes) and 4 minimums, byte 2r + half;
//                 u16[lane] their high 2 bits (low byte scales); half2[16 rows] d, dmin
//   Q5_K 2816     codes; [chunk] word 2r + half: fifth bits, bit 8 * byte + quartet; then as Q4_K
//   Q6_K 3360     codes; [r][chunk] word i: bit pairs 8 * byte + 4 * half + 2 * (quartet 4 + i, not i);
//                 i8[lane][2r rows][4] scales of 16 columns; half[16 rows] d
//   Q4_0 2304     codes; half[lane][2r + half] d
//   Q4_1 2560     codes; half2[lane][2r + half] d, m
//   MXFP4 2176    codes; u8[lane][2r + half] exponents
//   Q8_0 2 x 2176 for each half: [2r + 16 columns][chunk], 4 quartets; half[lane][r] d
//   F16, BF16 4 x 2048  for each 16 columns: [2r + 8 columns][chunk]
// A STEP is the piece that a warp of the mat-vec kernel takes at once: a tile, half of one (Q8_0) or a quarter (floats).
#pragma once
#include "quantize.cuh"

constexpr int TILE_ROWS = 16;
constexpr int TILE_COLS = 256;
// int8 activations of 256 columns: 256 bytes and 16 pairs (d, d * sum).
constexpr int ACTS8_BYTES = 384;

// The place of a lane's chunk among 32. Chunks of a group of 8 lanes fill 128 bytes, and so do those of 8 rows (`lane / 4`)
// with one `lane % 4`: neither way of reading them meets a bank of shared memory twice.
INLINE int chunk_of(int lane) { return (lane & ~7) | ((lane >> 3) ^ (lane & 3)) << 1 | (lane >> 2 & 1); }

// ---- registers of one step, and its products

// Four 16-byte words of codes and `N` words of scales.
template <int N> struct StepRegs {
    uint4 w[4];
    uint32_t x[N];
};

INLINE uint4 stream16(const uint8_t* p, int i) { return __ldcs(reinterpret_cast<const uint4*>(p) + i); }
INLINE uint2 stream8(const uint8_t* p, int i) { return __ldcs(reinterpret_cast<const uint2*>(p) + i); }
INLINE uint32_t stream4(const uint8_t* p, int i) { return __ldcs(reinterpret_cast<const uint32_t*>(p) + i); }
INLINE uint32_t stream2(const uint8_t* p, int i) { return __ldcs(reinterpret_cast<const uint16_t*>(p) + i); }

template <int N> INLINE void load_codes(const uint8_t* s, int lane, StepRegs<N>& o) {
#pragma unroll
    for (int i = 0; i < 4; i++) o.w[i] = stream16(s + 16 * chunk_of(lane), 32 * i);
}

// Activations of one lane's 32 columns (a half): quartets of columns 0..15 and 16..31, and (d, d * sum) of both.
struct HalfActs {
    uint4 a, b;
    float4 s;
};
INLINE HalfActs half_acts(const uint8_t* acts, int half, int t) {
    const uint4* q = reinterpret_cast<const uint4*>(acts);
    return {q[8 * half + t], q[8 * half + 4 + t], reinterpret_cast<const float4*>(acts + 256)[4 * half + t]};
}

INLINE int dot4(uint32_t a, uint32_t b, int sum) { return __dp4a(static_cast<int>(a), static_cast<int>(b), sum); }
INLINE int dot16(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, uint4 x) {
    return dot4(w3, x.w, dot4(w2, x.z, dot4(w1, x.y, dot4(w0, x.x, 0))));
}
constexpr uint32_t LOW4 = 0x0f0f0f0fu;
// 32 half-byte codes times activations, scaled by these.
INLINE float dot_codes4(uint4 q, const HalfActs& x) {
    const int a = dot16(q.x & LOW4, q.y & LOW4, q.z & LOW4, q.w & LOW4, x.a);
    const int b = dot16(q.x >> 4 & LOW4, q.y >> 4 & LOW4, q.z >> 4 & LOW4, q.w >> 4 & LOW4, x.b);
    return static_cast<float>(a) * x.s.x + static_cast<float>(b) * x.s.z;
}
INLINE float dot_bytes(uint4 a, uint4 b, const HalfActs& x) {
    const int p = dot16(a.x, a.y, a.z, a.w, x.a), q = dot16(b.x, b.y, b.z, b.w, x.b);
    return static_cast<float>(p) * x.s.x + static_cast<float>(q) * x.s.z;
}

// The 4 scales and 4 minimums of a lane in bytes 2r + half.
INLINE void scales6(uint32_t low, uint32_t high, uint32_t& scales, uint32_t& mins) {
    const uint32_t s = ((high & 0xffu) * 0x1001u) & 0x000f000fu, m = ((high >> 8) * 0x1001u) & 0x000f000fu;
    scales = (low & LOW4) | ((s * 0x410u) & 0x30303030u);
    mins = (low >> 4 & LOW4) | ((m * 0x410u) & 0x30303030u);
}
// Fifth bits of quartet `i`, in their place.
INLINE uint32_t fifth(uint32_t bits, int i) {
    return (i < 4 ? bits << (4 - i) : bits >> (i - 4)) & 0x10101010u;
}
INLINE float fp4_scale(uint32_t e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
// Four E2M1 codes in half-bytes 0..3 to their doubled values as bytes.
INLINE uint32_t fp4_bytes(uint32_t codes) {
    const uint32_t index = codes & 0x7777u;
    const uint32_t plus = __byte_perm(0x03020100u, 0x0c080604u, index);
    const uint32_t minus = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, index);
    return __byte_perm(plus, minus, 0x3210u | (codes >> 1 & 0x4444u));
}
INLINE uint4 fp4_bytes16(uint32_t w0, uint32_t w1) {
    return make_uint4(fp4_bytes(w0), fp4_bytes(w0 >> 16), fp4_bytes(w1), fp4_bytes(w1 >> 16));
}

// A tile type: its sizes (WORDS: of scales in a step's registers), `load` of a step from global memory, and `dot` with activations in shared memory, which adds
// to the partial sums of rows g and g + 8.
//   FLOATS  activations are f32, else int8
//   BF16    the tensor product is in bf16, else f16
//   SCALE   what the tensor product's weights are multiplied by, to keep small ones out of f16's denormals; src/tiles.rs
//           knows it too
struct TileQ4_K {
    static constexpr int STEPS = 1, STEP_BYTES = 2304;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 4;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        o.x[0] = stream4(s + 2048, lane);
        o.x[1] = stream2(s + 2176, lane);
        o.x[2] = stream4(s + 2240, lane / 4);
        o.x[3] = stream4(s + 2240, lane / 4 + 8);
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
        uint32_t scales, mins;
        scales6(o.x[0], o.x[1], scales, mins);
        float s[2] = {0, 0}, m[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                s[r] += byte_value(scales, 2 * r + half) * dot_codes4(o.w[2 * r + half], x);
                m[r] += byte_value(mins, 2 * r + half) * (x.s.y + x.s.w);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] += low_f16(o.x[2 + r]) * s[r] - high_f16(o.x[2 + r]) * m[r];
    }
};

struct TileQ5_K {
    static constexpr int STEPS = 1, STEP_BYTES = 2816;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 8;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        const uint4 bits = stream16(s + 2048, chunk_of(lane));
        o.x[0] = stream4(s + 2560, lane);
        o.x[1] = stream2(s + 2688, lane);
        o.x[2] = stream4(s + 2752, lane / 4);
        o.x[3] = stream4(s + 2752, lane / 4 + 8);
        o.x[4] = bits.x, o.x[5] = bits.y, o.x[6] = bits.z, o.x[7] = bits.w;
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
        uint32_t scales, mins;
        scales6(o.x[0], o.x[1], scales, mins);
        float s[2] = {0, 0}, m[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 q = o.w[2 * r + half];
                const uint32_t h = o.x[4 + 2 * r + half];
                const uint4 a = make_uint4((q.x & LOW4) | fifth(h, 0), (q.y & LOW4) | fifth(h, 1),
                                           (q.z & LOW4) | fifth(h, 2), (q.w & LOW4) | fifth(h, 3));
                const uint4 b = make_uint4((q.x >> 4 & LOW4) | fifth(h, 4), (q.y >> 4 & LOW4) | fifth(h, 5),
                                           (q.z >> 4 & LOW4) | fifth(h, 6), (q.w >> 4 & LOW4) | fifth(h, 7));
                s[r] += byte_value(scales, 2 * r + half) * dot_bytes(a, b, x);
                m[r] += byte_value(mins, 2 * r + half) * (x.s.y + x.s.w);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] += low_f16(o.x[2 + r]) * s[r] - high_f16(o.x[2 + r]) * m[r];
    }
};

struct TileQ6_K {
    static constexpr int STEPS = 1, STEP_BYTES = 3360;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 12;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        const uint4 h0 = stream16(s + 2048, chunk_of(lane)), h1 = stream16(s + 2048, 32 + chunk_of(lane));
        const uint2 scales = stream8(s + 3072, lane);
        o.x[0] = stream2(s + 3328, lane / 4);
        o.x[1] = stream2(s + 3328, lane / 4 + 8);
        o.x[2] = scales.x, o.x[3] = scales.y;
        o.x[4] = h0.x, o.x[5] = h0.y, o.x[6] = h0.z, o.x[7] = h0.w;
        o.x[8] = h1.x, o.x[9] = h1.y, o.x[10] = h1.z, o.x[11] = h1.w;
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
        constexpr uint32_t HIGH = 0x30303030u;
        float s[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 q = o.w[2 * r + half];
                const uint32_t* h = o.x + 4 + 4 * r;
                auto low = [&](int i) { return (half == 0 ? h[i] << 4 : h[i]) & HIGH; };
                auto high = [&](int i) { return (half == 0 ? h[i] << 2 : h[i] >> 2) & HIGH; };
                const int a = dot16((q.x & LOW4) | low(0), (q.y & LOW4) | low(1), (q.z & LOW4) | low(2), (q.w & LOW4) | low(3), x.a);
                const int b = dot16((q.x >> 4 & LOW4) | high(0), (q.y >> 4 & LOW4) | high(1), (q.z >> 4 & LOW4) | high(2),
                                    (q.w >> 4 & LOW4) | high(3), x.b);
                s[r] += signed_byte_value(o.x[2 + r], 2 * half) * (static_cast<float>(a) * x.s.x - 32.0f * x.s.y);
                s[r] += signed_byte_value(o.x[2 + r], 2 * half + 1) * (static_cast<float>(b) * x.s.z - 32.0f * x.s.w);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] += low_f16(o.x[r]) * s[r];
    }
};

struct TileQ4_0 {
    static constexpr int STEPS = 1, STEP_BYTES = 2304;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 2;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        const uint2 d = stream8(s + 2048, lane);
        o.x[0] = d.x, o.x[1] = d.y;
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
            const float eight = 8.0f * (x.s.y + x.s.w);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float d = half ? high_f16(o.x[r]) : low_f16(o.x[r]);
                sum[r] += d * (dot_codes4(o.w[2 * r + half], x) - eight);
            }
        }
    }
};

struct TileQ4_1 {
    static constexpr int STEPS = 1, STEP_BYTES = 2560;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 4;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        const uint4 d = stream16(s + 2048, lane);
        o.x[0] = d.x, o.x[1] = d.y, o.x[2] = d.z, o.x[3] = d.w;
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t d = o.x[2 * r + half];
                sum[r] += low_f16(d) * dot_codes4(o.w[2 * r + half], x) + high_f16(d) * (x.s.y + x.s.w);
            }
        }
    }
};

struct TileMXFP4 {
    static constexpr int STEPS = 1, STEP_BYTES = 2176;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 1;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        o.x[0] = stream4(s + 2048, lane);
    }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const HalfActs x = half_acts(acts, half, t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 q = o.w[2 * r + half];
                const float d = fp4_scale(o.x[0] >> (8 * (2 * r + half)) & 0xff);
                sum[r] += d * dot_bytes(fp4_bytes16(q.x, q.y), fp4_bytes16(q.z, q.w), x);
            }
        }
    }
};

// A step is a half.
struct TileQ8_0 {
    static constexpr int STEPS = 2, STEP_BYTES = 2176;
    static constexpr bool FLOATS = false, BF16 = false;
    static constexpr float SCALE = 64.0f;
    static constexpr int WORDS = 1;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) {
        load_codes(s, lane, o);
        o.x[0] = stream4(s + 2048, lane);
    }
    // `acts` of the tile; the step in it follows from `step`.
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2], int half) {
        const HalfActs x = half_acts(acts, half, t);
        sum[0] += low_f16(o.x[0]) * dot_bytes(o.w[0], o.w[1], x);
        sum[1] += high_f16(o.x[0]) * dot_bytes(o.w[2], o.w[3], x);
    }
};

// A step is a quarter: 16 columns of a lane. Activations are f32, [4 columns][t] float4 in a step.
template <bool B> struct TileFloat {
    static constexpr int STEPS = 4, STEP_BYTES = 2048;
    static constexpr bool FLOATS = true, BF16 = B;
    static constexpr float SCALE = 1.0f;
    static constexpr int WORDS = 1;
    template <class R> INLINE static void load(const uint8_t* s, int lane, R& o) { load_codes(s, lane, o); }
    INLINE static float low(uint32_t v) { return B ? low_bf16(v) : low_f16(v); }
    INLINE static float high(uint32_t v) { return B ? high_bf16(v) : high_f16(v); }
    template <class R> INLINE static void dot(const R& o, const uint8_t* acts, int t, float (&sum)[2], int step) {
        const float4* x = reinterpret_cast<const float4*>(acts) + 16 * step + t;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 a = x[8 * i], b = x[8 * i + 4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint4 w = o.w[2 * r + i];
                float s = low(w.x) * a.x + high(w.x) * a.y + low(w.y) * a.z + high(w.y) * a.w;
                s += low(w.z) * b.x + high(w.z) * b.y + low(w.w) * b.z + high(w.w) * b.w;
                sum[r] += s;
            }
        }
    }
};
using TileF16 = TileFloat<false>;
using TileBF16 = TileFloat<true>;

// The products of one step with the activations of its tile.
template <class T, class R>
INLINE void step_dot(const R& o, const uint8_t* acts, int t, float (&sum)[2], int step) {
    if constexpr (T::STEPS == 1) T::dot(o, acts, t, sum);
    else T::dot(o, acts, t, sum, step);
}
// Bytes of the activations of 256 columns as the mat-vec kernel keeps them, and of a tile.
template <class T> constexpr int ACTS_BYTES = T::FLOATS ? 4 * TILE_COLS : ACTS8_BYTES;
template <class T> constexpr int TILE_BYTES = T::STEPS * T::STEP_BYTES;
