// The blocks of every quantised weight type, and how sixteen consecutive elements are decoded: one text for the kernels
// of Metal and of CUDA, and for what runs them on the host.
//
// Each type has ELEMENTS and BYTES of a block and `decode16(block, part, w)`, which writes elements 16 * part ..
// 16 * part + 16 of a block. The formulas and the order of operations are those of the decoders beside this folder, so that
// decoded values are the same numbers; tests of the backends compare them.
//
// The includer provides
//   BLOCK_FN      what stands before a function, but for `static`,
//   BLOCK_SRC     pointers to weights' bytes,
//   BLOCK_OUT     pointers to a thread's own floats, BLOCK_CODES to its own uint,
//   BLOCK_TABLE   what stands before a constant table,
// the types uint and ushort, and u16_at(p), which reads two bytes at an even address, f16_value(bits) and
// f32_of_bits(bits).
#pragma once
#include "grids.h"

// Blocks are aligned to two bytes only.
BLOCK_FN uint u32_at(BLOCK_SRC p) {
    return u16_at(p) | u16_at(p + 2) << 16;
}

BLOCK_FN float f16_at(BLOCK_SRC p) {
    return f16_value(u16_at(p));
}

BLOCK_FN int signed_byte(uint byte) {
    return int(byte ^ 128) - 128;
}

// Types whose rows are whole blocks: no element is read by itself.
struct WholeBlocks {
    static BLOCK_FN float at(BLOCK_SRC, uint) {
        return 0.0f;
    }
};

// Sixteen nibbles of one kind, low or high, of sixteen bytes.
BLOCK_FN void nibbles16(BLOCK_SRC packed, uint high, BLOCK_CODES codes) {
    for (uint i = 0; i < 8; i++) {
        uint pair = u16_at(packed + 2 * i) >> (4 * high);
        codes[2 * i] = pair & 15;
        codes[2 * i + 1] = pair >> 8 & 15;
    }
}

struct Q4_0 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 18, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        uint codes[16];
        nibbles16(block + 2, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(int(codes[i]) - 8);
    }
};

struct Q4_1 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 20, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block), m = f16_at(block + 2);
        uint codes[16];
        nibbles16(block + 4, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(codes[i]) + m;
    }
};

struct Q5_0 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 22, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        uint high = u16_at(block + 2 + 2 * part);
        uint codes[16];
        nibbles16(block + 6, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(int(codes[i] | (high >> i & 1) << 4) - 16);
    }
};

struct Q5_1 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 24, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block), m = f16_at(block + 2);
        uint high = u16_at(block + 4 + 2 * part);
        uint codes[16];
        nibbles16(block + 8, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(codes[i] | (high >> i & 1) << 4) + m;
    }
};

struct Q8_0 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 34, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        BLOCK_SRC codes = block + 2 + 16 * part;
        for (uint i = 0; i < 8; i++) {
            uint pair = u16_at(codes + 2 * i);
            w[2 * i] = d * float(signed_byte(pair & 255));
            w[2 * i + 1] = d * float(signed_byte(pair >> 8));
        }
    }
};

struct Q1_0 : WholeBlocks {
    enum : uint { ELEMENTS = 128, BYTES = 18, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        uint bits = u16_at(block + 2 + 2 * part);
        for (uint i = 0; i < 16; i++) w[i] = (bits >> i & 1) != 0 ? d : -d;
    }
};

struct Q2_0 : WholeBlocks {
    enum : uint { ELEMENTS = 64, BYTES = 18, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        uint codes = u32_at(block + 2 + 4 * part);
        for (uint i = 0; i < 16; i++) w[i] = d * float(int(codes >> (2 * i) & 3) - 1);
    }
};

// Sixteen two-bit codes in the order of the K-quants: from each 32 bytes four runs of 32 elements.
BLOCK_FN void crumbs16(BLOCK_SRC packed, uint part, BLOCK_CODES codes) {
    BLOCK_SRC from = packed + part / 8 * 32 + part % 2 * 16;
    uint shift = part % 8 / 2 * 2;
    for (uint i = 0; i < 8; i++) {
        uint pair = u16_at(from + 2 * i) >> shift;
        codes[2 * i] = pair & 3;
        codes[2 * i + 1] = pair >> 8 & 3;
    }
}

struct Q2_K : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 84, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint packed = block[part];
        float scale = f16_at(block + 80) * float(packed & 15);
        float least = -f16_at(block + 82) * float(packed >> 4);
        uint codes[16];
        crumbs16(block + 16, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = scale * float(codes[i]) + least;
    }
};

struct Q3_K : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 110, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        BLOCK_SRC packed = block + 96;
        uint low = packed[part % 8] >> (4 * (part / 8)) & 15;
        uint high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
        float scale = f16_at(block + 108) * float(int(low | high << 4) - 32);
        BLOCK_SRC plane = block + part % 2 * 16;
        uint codes[16];
        crumbs16(block + 32, part, codes);
        for (uint i = 0; i < 16; i++) {
            uint bit = plane[i] >> (part / 2) & 1;
            w[i] = scale * float(int(codes[i] | bit << 2) - 4);
        }
    }
};

// The 6-bit scale and minimum of group `g` of Q4_K and Q5_K, from their twelve bytes.
BLOCK_FN uint scale6(BLOCK_SRC packed, uint g) {
    return g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
}
BLOCK_FN uint min6(BLOCK_SRC packed, uint g) {
    return g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
}

struct Q4_K : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 144, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint g = part / 2;
        float scale = f16_at(block) * float(scale6(block + 4, g));
        float least = -f16_at(block + 2) * float(min6(block + 4, g));
        uint codes[16];
        nibbles16(block + 16 + g / 2 * 32 + part % 2 * 16, g % 2, codes);
        for (uint i = 0; i < 16; i++) w[i] = scale * float(codes[i]) + least;
    }
};

struct Q5_K : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 176, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint g = part / 2;
        float scale = f16_at(block) * float(scale6(block + 4, g));
        float least = -f16_at(block + 2) * float(min6(block + 4, g));
        BLOCK_SRC plane = block + 16 + part % 2 * 16;
        uint codes[16];
        nibbles16(block + 48 + g / 2 * 32 + part % 2 * 16, g % 2, codes);
        for (uint i = 0; i < 16; i++) {
            uint bit = plane[i] >> g & 1;
            w[i] = scale * float(codes[i] | bit << 4) + least;
        }
    }
};

struct Q6_K : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 210, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float scale = f16_at(block + 208) * float(signed_byte(block[192 + part]));
        uint low[16], high[16];
        nibbles16(block + part / 8 * 64 + part % 4 * 16, part % 8 / 4, low);
        crumbs16(block + 128, part, high);
        for (uint i = 0; i < 16; i++) w[i] = scale * float(int(low[i] | high[i] << 4) - 32);
    }
};

// Digit `n`, counted from the point, of a fraction of 256 in base 3.
BLOCK_FN int ternary_digit(uint byte, uint n) {
    uint power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return int((byte * power & 255) * 3 >> 8);
}

struct TQ1_0 : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 54, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block + 52);
        for (uint i = 0; i < 16; i++) {
            uint byte = part < 10 ? part % 2 * 16 + i : part < 15 ? 32 + i : 48 + i % 4;
            uint digit = part < 10 ? part / 2 : part < 15 ? part - 10 : i / 4;
            w[i] = d * float(ternary_digit(block[byte], digit) - 1);
        }
    }
};

struct TQ2_0 : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 66, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block + 64);
        uint codes[16];
        crumbs16(block, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(int(codes[i]) - 1);
    }
};

// Levels of IQ4_NL and IQ4_XS.
BLOCK_TABLE short IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 18, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float d = f16_at(block);
        uint codes[16];
        nibbles16(block + 2, part, codes);
        for (uint i = 0; i < 16; i++) w[i] = d * float(IQ4_LEVELS[codes[i]]);
    }
};

struct IQ4_XS : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 136, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint g = part / 2;
        uint low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
        uint high = u16_at(block + 2) >> (2 * g) & 3;
        float scale = f16_at(block) * float(int(low | high << 4) - 32);
        uint codes[16];
        nibbles16(block + 8 + 16 * g, part % 2, codes);
        for (uint i = 0; i < 16; i++) w[i] = scale * float(IQ4_LEVELS[codes[i]]);
    }
};

// Twice the values of E2M1 floats.
BLOCK_TABLE short FP4_LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct MXFP4 : WholeBlocks {
    enum : uint { ELEMENTS = 32, BYTES = 17, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        // Two to the power e - 128, by the bits of the float; the two least are below the normal ones.
        uint e = block[0];
        float d = f32_of_bits(e < 2 ? uint(0x00200000) << e : (e - 1) << 23);
        for (uint i = 0; i < 16; i++) w[i] = d * float(FP4_LEVELS[block[1 + i] >> (4 * part) & 15]);
    }
};

struct NVFP4 : WholeBlocks {
    enum : uint { ELEMENTS = 64, BYTES = 36, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        // An E4M3 scale in multiples of its least value above 0, which is 1/512; levels are doubled.
        uint scale = block[part], exponent = scale >> 3 & 15, fraction = scale & 7;
        uint units = scale == 0x7f ? 0 : exponent == 0 ? fraction : (8 + fraction) << (exponent - 1);
        float d = (1.0f / 1024.0f) * float(units);
        BLOCK_SRC codes = block + 4 + 8 * part;
        for (uint i = 0; i < 8; i++) {
            w[i] = d * float(FP4_LEVELS[codes[i] & 15]);
            w[8 + i] = d * float(FP4_LEVELS[codes[i] >> 4]);
        }
    }
};

#include "codebooks.h"
