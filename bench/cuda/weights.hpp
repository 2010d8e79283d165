// Random weights as GGUF blocks, their values, and the sizes of tiles.
#pragma once
#include <cmath>
#include <cstring>

#include "gpu.hpp"

// The host reads blocks by the code that the simple kernels use; repacking and the fast kernels share nothing with it.
inline float f32_of_bits(uint32_t bits) {
    float v;
    memcpy(&v, &bits, 4);
    return v;
}
inline float f16_value(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) return f32_of_bits(sign | 0x7f800000u | fraction << 13);
    return f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}
inline float bf16_value(uint32_t bits) { return f32_of_bits(bits << 16); }
inline uint16_t bf16_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// Nearest f16 of a normal number.
inline uint16_t f16_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    const float size = std::fabs(v);
    if (size < 6.1e-5f) return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 24))));
    bits &= 0x7fffffff;
    bits += 0xfff + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

#define BLOCK_FN inline
#define BLOCK_SRC const uint8_t*
#define BLOCK_TABLE static const
#define BLOCK_OUT float*
#define BLOCK_CODES uint*
inline uint32_t u16_at(const uint8_t* p) { return p[0] | uint32_t(p[1]) << 8; }
#include "../../crates/cuda/kernels/decode.h"

struct Type {
    const char* name;
    uint32_t id, elements, bytes, tile;
    bool floats;
    // Whether large products of up to 8 rows are in whole numbers; of Q6_K those of many columns.
    bool whole() const { return id == Q4_K || id == Q5_K || id == Q6_K; }
    // What undoes the factor of its 16-bit weights.
    float factor() const { return floats ? 1.0f : 1.0f / 64; }
    double bits() const { return 8.0 * bytes / elements; }
};
static const Type TYPES[] = {
    {"q4_k", Q4_K, 256, 144, 2304, false}, {"q5_k", Q5_K, 256, 176, 2816, false}, {"q6_k", Q6_K, 256, 210, 3360, false},
    {"q8_0", Q8_0, 32, 34, 4352, false},   {"q4_0", Q4_0, 32, 18, 2304, false},   {"q4_1", Q4_1, 32, 20, 2560, false},
    {"mxfp4", MXFP4, 32, 17, 2176, false}, {"f16", F16, 1, 2, 8192, true},        {"bf16", BF16, 1, 2, 8192, true},
};
inline const Type& type_of(const std::string& name) {
    for (const Type& t : TYPES) {
        if (name == t.name) return t;
    }
    printf("no type %s\n", name.c_str());
    exit(1);
}
inline uint32_t up(uint32_t n, uint32_t to) { return (n + to - 1) / to; }

// Blocks with weights of about 1 / sqrt(cols).
inline std::vector<uint8_t> random_blocks(const Type& t, uint32_t rows, uint32_t cols, uint32_t seed) {
    const size_t blocks = static_cast<size_t>(rows) * cols / t.elements;
    std::vector<uint8_t> v(blocks * t.bytes);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i + 8 <= v.size(); i += 8) {
        const uint64_t r = random();
        memcpy(&v[i], &r, 8);
    }
    const float size = 1 / std::sqrt(static_cast<float>(cols));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < blocks; i++) {
        uint8_t* b = &v[i * t.bytes];
        auto put = [&](size_t at, uint16_t bits) { memcpy(b + at, &bits, 2); };
        const float u = 0.5f + static_cast<float>(random() & 1023) / 1024;
        switch (t.id) {
        case Q4_K: put(0, f16_of(size * u / 180)), put(2, f16_of(size * u * 7.5f / 180)); break;
        case Q5_K: put(0, f16_of(size * u / 360)), put(2, f16_of(size * u * 15 / 360)); break;
        case Q6_K: put(208, f16_of(size * u / 1300)); break;
        case Q8_0: put(0, f16_of(size * u / 74)); break;
        case Q4_0: put(0, f16_of(size * u / 4.6f)); break;
        case Q4_1: put(0, f16_of(size * u / 4.6f)), put(2, f16_of(-size * u * 7.5f / 4.6f)); break;
        case MXFP4: b[0] = static_cast<uint8_t>(119 + random() % 4); break;
        case F16: put(0, f16_of(size * normal(random))); break;
        default: put(0, bf16_of(size * normal(random)));
        }
    }
    return v;
}
inline void row_values(const Type& t, const std::vector<uint8_t>& raw, uint32_t row, uint32_t cols, std::vector<double>& out) {
    out.resize(cols);
    const uint8_t* p = raw.data() + static_cast<size_t>(row) * cols / t.elements * t.bytes;
    for (uint32_t piece = 0; PIECE_ELEMENTS * piece < cols; piece++) {
        float v[PIECE_ELEMENTS];
        const uint32_t n = std::min<uint32_t>(PIECE_ELEMENTS, cols - PIECE_ELEMENTS * piece);
        decode_elements(t.id, t.elements, t.bytes, p, piece, n, v);
        for (uint32_t j = 0; j < n; j++) out[PIECE_ELEMENTS * piece + j] = v[j];
    }
}

#include "../../crates/cuda/kernels/args.h"
#include "../../crates/cuda/kernels/modes.h"

// The int8 image of up to 8 rows, as acts.cuh has it: bytes of 256 columns, and a value of it.
constexpr size_t FEW_BYTES = 2816;
inline double few_value(const std::vector<uint8_t>& image, uint32_t row, uint32_t column) {
    const uint8_t* tile = &image[column / 256 * FEW_BYTES];
    const uint32_t piece = column % 256 / 32, c = column % 8, place = (c & 2) * 2 + (c & 1) * 2 + (c >> 2), quartet = column % 32 / 8 * 2 + place / 4;
    float scale;
    memcpy(&scale, tile + 2048 + 4 * (piece / 2 * 16 + row / 2 * 4 + piece % 2 * 2 + row % 2), 4);
    return scale * static_cast<int8_t>(tile[((2 * piece + quartet / 4) * 8 + row) * 16 + quartet % 4 * 4 + place % 4]);
}
// The sum of the values of a piece, as it is next to them.
inline double few_sum(const std::vector<uint8_t>& image, uint32_t row, uint32_t piece) {
    float parts[2];
    memcpy(parts, &image[piece / 8 * FEW_BYTES + 2304 + 8 * (row * 8 + piece % 8)], 8);
    return static_cast<double>(parts[0]) + parts[1];
}

// A matrix on the device, in tiles.
struct Matrix {
    const Type* type;
    uint32_t rows, cols, row_tiles, k_tiles;
    std::vector<uint8_t> raw;  // GGUF rows, where kept
    Buffer<uint8_t> tiles;

    size_t bytes() const { return static_cast<size_t>(row_tiles) * k_tiles * type->tile; }
    Segment segment(float* out, float* tail = nullptr, const float* bias = nullptr) const {
        return {tiles.p, bias, out, tail, rows, row_tiles};
    }
};
inline std::string repack_name(const Type& t) { return t.floats ? "repack_16bit" : std::string("repack_") + t.name; }
inline Matrix make_matrix(Gpu& gpu, const Type& t, uint32_t rows, uint32_t cols, uint32_t seed, bool keep = true) {
    Matrix m{&t, rows, cols, up(rows, 16), up(cols, 256), random_blocks(t, rows, cols, seed), {}};
    Buffer<uint8_t> raw(m.raw);
    m.tiles = Buffer<uint8_t>(m.bytes());
    gpu.launch(gpu.kernel("repack", repack_name(t)), dim3(m.k_tiles, m.row_tiles), 32, 0,
               RepackArgs{raw.p, m.tiles.p, rows, cols});
    gpu.sync();
    if (!keep) m.raw = {};
    return m;
}
inline std::vector<float> random_floats(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> v(n);
    for (float& x : v) x = normal(random);
    return v;
}
