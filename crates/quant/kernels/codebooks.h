// Weight types whose magnitudes come from codebooks: eight or four elements at a time by an index.
#pragma once

// The eight signs of a seven-bit sign index: the top bit makes the number of negative signs even.
BLOCK_FN uint even_signs(uint index) {
    uint low = index & 127, half = low ^ low >> 4, pair = half ^ half >> 2;
    return low | ((pair ^ pair >> 1) & 1) << 7;
}

BLOCK_FN float signed_value(float magnitude, uint signs, uint i) {
    return (signs >> i & 1) != 0 ? -magnitude : magnitude;
}

// The three magnitudes of the IQ2 types.
BLOCK_FN float magnitude2(uint index) {
    return index == 0 ? 8.0f : index == 1 ? 25.0f : 43.0f;
}

// Eight elements of an IQ2 type.
BLOCK_FN void write8(uint entry, uint signs, float scale, BLOCK_OUT w) {
    for (uint i = 0; i < 8; i++) w[i] = scale * signed_value(magnitude2(entry >> (2 * i) & 3), signs, i);
}

struct IQ2_XXS : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 66, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        BLOCK_SRC group = block + 2 + part / 2 * 8;
        uint word = u32_at(group + 4);
        float scale = f16_at(block) / 8.0f * float(2 * (word >> 28) + 1);
        for (uint j = 0; j < 2; j++) {
            uint k = part % 2 * 2 + j;
            write8(GRID_IQ2_XXS[group[k]], even_signs(word >> (7 * k)), scale, w + 8 * j);
        }
    }
};

// Odd scales from nibbles, low ones first.
BLOCK_FN float odd_scale(BLOCK_SRC packed, uint i) {
    return float(2 * (packed[i / 2] >> (4 * (i % 2)) & 15) + 1);
}

struct IQ2_XS : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 74, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float scale = f16_at(block) / 8.0f * odd_scale(block + 66, part);
        for (uint j = 0; j < 2; j++) {
            uint q = u16_at(block + 2 + 2 * (2 * part + j));
            write8(GRID_IQ2_XS[q & 511], even_signs(q >> 9), scale, w + 8 * j);
        }
    }
};

struct IQ2_S : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 82, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float scale = f16_at(block) / 8.0f * odd_scale(block + 74, part);
        for (uint j = 0; j < 2; j++) {
            uint i = 2 * part + j;
            uint high = block[66 + i / 4] >> (2 * (i % 4)) & 3;
            write8(GRID_IQ2_S[block[2 + i] | high << 8], block[34 + i], scale, w + 8 * j);
        }
    }
};

struct IQ3_XXS : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 98, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint word = u32_at(block + 66 + part / 2 * 4);
        float scale = f16_at(block) / 4.0f * float(2 * (word >> 28) + 1);
        for (uint j = 0; j < 4; j++) {
            uint i = 4 * part + j;
            uint entry = GRID_IQ3_XXS[block[2 + i]];
            uint signs = even_signs(word >> (7 * (i / 2 % 4))) >> (4 * (i % 2));
            for (uint k = 0; k < 4; k++) {
                // Magnitudes are 4, 12, 20 … 52 and 62.
                uint index = entry >> (4 * k) & 15;
                float magnitude = index == 7 ? 62.0f : float(4 + 8 * index);
                w[4 * j + k] = scale * signed_value(magnitude, signs, k);
            }
        }
    }
};

struct IQ3_S : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 110, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        float scale = f16_at(block) * odd_scale(block + 106, part / 2);
        for (uint j = 0; j < 4; j++) {
            uint i = 4 * part + j;
            uint high = block[66 + i / 8] >> (i % 8) & 1;
            uint entry = GRID_IQ3_S[block[2 + i] | high << 8];
            uint signs = block[74 + i / 2] >> (4 * (i % 2));
            for (uint k = 0; k < 4; k++) {
                // Magnitudes are 1, 3, 5 … 15.
                float magnitude = float(1 + 2 * (entry >> (4 * k) & 15));
                w[4 * j + k] = scale * signed_value(magnitude, signs, k);
            }
        }
    }
};

// Eight elements of -8, 0 and 8, shifted by one: eighths.
BLOCK_FN void write8_shifted(uint entry, bool less, float scale, BLOCK_OUT w) {
    float shift = less ? -1.0f : 1.0f;
    for (uint i = 0; i < 8; i++) {
        float value = float(8 * (int(entry >> (2 * i) & 3) - 1));
        w[i] = scale * (value + shift);
    }
}

struct IQ1_S : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 50, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint word = u16_at(block + 34 + part / 2 * 2);
        float scale = f16_at(block) / 8.0f * float(2 * (word >> 12 & 7) + 1);
        for (uint j = 0; j < 2; j++) {
            uint i = 2 * part + j;
            uint high = word >> (3 * (i % 4)) & 7;
            write8_shifted(GRID_IQ1_S[block[2 + i] | high << 8], (word & 0x8000) != 0, scale, w + 8 * j);
        }
    }
};

struct IQ1_M : WholeBlocks {
    enum : uint { ELEMENTS = 256, BYTES = 56, PLAIN = 0 };
    static BLOCK_FN void decode16(BLOCK_SRC block, uint part, BLOCK_OUT w) {
        uint bits = 0;
        for (uint k = 0; k < 4; k++) bits |= u16_at(block + 48 + 2 * k) >> 12 << (4 * k);
        uint packed = u16_at(block + 48 + part / 4 * 2) >> (3 * (part % 4)) & 7;
        float scale = f16_value(bits) / 8.0f * float(2 * packed + 1);
        for (uint j = 0; j < 2; j++) {
            uint i = 2 * part + j;
            uint nibble = block[32 + i / 2] >> (4 * (i % 2)) & 15;
            write8_shifted(GRID_IQ1_S[block[i] | (nibble & 7) << 8], (nibble & 8) != 0, scale, w + 8 * j);
        }
    }
};
