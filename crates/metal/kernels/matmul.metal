// Products of weight matrices of type WEIGHT with many rows of activations: tiles of 32 tokens and 64 matrix rows
// through threadgroup memory, with simdgroup matrices (SIMDGROUP_MATRIX 1) or plain multiplications (0).
//
// Tiles are kept in f32: activations of real models leave the range of f16.
#include "args.h"
#include "weights.h"

FUNCTION_CONSTANT(bool, has_bias, 1);
FUNCTION_CONSTANT(bool, has_residual, 2);
// Whether each tile of tokens belongs to an expert, and its rows are found in lists.
FUNCTION_CONSTANT(bool, by_expert, 3);
// Whether every expert of a token has an input of its own.
FUNCTION_CONSTANT(bool, input_per_expert, 4);

enum : uint { TOKENS = 32, OUTPUTS = 64, DEPTH = 32, THREADS = 128 };

// Grid: [tiles of matrix rows, tiles of tokens, experts], THREADS threads. y [tokens, rows], bias [experts, rows].
//
// By expert, a token is a slot: token number times experts of a token, plus the place among them; slots of expert e are
// `lists[e * args.tokens ..]`, `counts[e]` of them.
kernel void matmul(constant MatmulArgs& args [[buffer(0)]],
                   device const float* x [[buffer(1)]],
                   device const uchar* w [[buffer(2)]],
                   device const float* bias [[buffer(3)]],
                   device const float* residual [[buffer(4)]],
                   device const uint* counts [[buffer(5)]],
                   device const uint* lists [[buffer(6)]],
                   device float* y [[buffer(7)]],
                   uint3 place [[threadgroup_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]],
                   uint group [[simdgroup_index_in_threadgroup]]) {
    // [OUTPUTS, DEPTH] of the matrix, later the results [TOKENS, OUTPUTS].
    SHARED(float, left, OUTPUTS * DEPTH);
    // [TOKENS, DEPTH] of the activations.
    SHARED(float, right, TOKENS * DEPTH);
    uint first_output = place.x * OUTPUTS, first_token = place.y * TOKENS;
    uint tokens = by_expert ? counts[place.z] : args.tokens;
    // The same for all threads of the threadgroup.
    if (first_token >= tokens) return;
    device const uint* list = lists + ulong(place.z) * args.tokens;

    // Each thread brings 16 elements of one matrix row and 8 of one row of activations.
    uint row = min(first_output + tid / 2, args.rows - 1);
    device const uchar* from_w = w + (ulong(place.z) * args.rows + row) * args.row_bytes;
    uint token = min(first_token + tid / 4, tokens - 1);
    if (by_expert) token = input_per_expert ? list[token] : list[token] / args.used;
    device const float* from_x = x + ulong(token) * args.cols;

#if SIMDGROUP_MATRIX
    simdgroup_float8x8 sums[8];
    for (uint i = 0; i < 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    uint outputs_at = group % 2 * 32, tokens_at = group / 2 * 16;
#else
    float sums[16];
    for (uint i = 0; i < 16; i++) sums[i] = 0.0f;
    uint outputs_at = tid % 16 * 4, tokens_at = tid / 16 * 4;
#endif

    for (uint k = 0; k < args.cols; k += DEPTH) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint at = k + tid % 2 * 16;
        float elements[16];
        for (uint i = 0; i < 16; i++) elements[i] = 0.0f;
        if (at + 16 <= args.cols) {
            decode16<WEIGHT>(from_w, at / 16, elements);
        } else if (WEIGHT::PLAIN) {
            for (uint i = at; i < args.cols; i++) elements[i - at] = WEIGHT::at(from_w, i);
        }
        for (uint i = 0; i < 16; i++) left[tid * 16 + i] = elements[i];
        for (uint i = 0; i < 8; i++) {
            uint column = k + tid % 4 * 8 + i;
            right[tid * 8 + i] = column < args.cols ? from_x[column] : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
#if SIMDGROUP_MATRIX
        for (uint d = 0; d < DEPTH; d += 8) {
            simdgroup_float8x8 a[2], b[4];
            for (uint i = 0; i < 2; i++) simdgroup_load(a[i], right + (tokens_at + 8 * i) * DEPTH + d, DEPTH);
            for (uint j = 0; j < 4; j++) {
                simdgroup_load(b[j], left + (outputs_at + 8 * j) * DEPTH + d, DEPTH, ulong2(0, 0), true);
            }
            for (uint i = 0; i < 2; i++) {
                for (uint j = 0; j < 4; j++) simdgroup_multiply_accumulate(sums[4 * i + j], a[i], b[j], sums[4 * i + j]);
            }
        }
#else
        for (uint d = 0; d < DEPTH; d++) {
            float a[4], b[4];
            for (uint i = 0; i < 4; i++) {
                a[i] = right[(tokens_at + i) * DEPTH + d];
                b[i] = left[(outputs_at + i) * DEPTH + d];
            }
            for (uint i = 0; i < 4; i++) {
                for (uint j = 0; j < 4; j++) sums[4 * i + j] += a[i] * b[j];
            }
        }
#endif
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
#if SIMDGROUP_MATRIX
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 4; j++) {
            simdgroup_store(sums[4 * i + j], left + (tokens_at + 8 * i) * OUTPUTS + outputs_at + 8 * j, OUTPUTS);
        }
    }
#else
    for (uint i = 0; i < 4; i++) {
        for (uint j = 0; j < 4; j++) left[(tokens_at + i) * OUTPUTS + outputs_at + j] = sums[4 * i + j];
    }
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < TOKENS * OUTPUTS; i += THREADS) {
        uint out = first_output + i % OUTPUTS, t = first_token + i / OUTPUTS;
        if (out >= args.rows || t >= tokens) continue;
        if (by_expert) t = list[t];
        float value = left[i];
        if (has_bias) value += bias[ulong(place.z) * args.rows + out];
        ulong index = ulong(t) * args.rows + out;
        if (has_residual) value += residual[index];
        y[index] = value;
    }
}
