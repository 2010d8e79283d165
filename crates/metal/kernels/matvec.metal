// Products of weight matrices of type WEIGHT with few rows of activations: one (BATCH 1) or up to four (BATCH 4).
//
// A simdgroup takes ROWS rows of the matrix; each thread takes 16 elements at a time of each of them and multiplies
// them with all rows of the batch. What surrounds a product in a model runs along with it: up to three matrices on
// one input, the norm before, bias, gated activation or residual sum after.
#include "args.h"
#include "activation.h"
#include "dots.h"

FUNCTION_CONSTANT(bool, norm_first, 2);
FUNCTION_CONSTANT(bool, gated, 3);
FUNCTION_CONSTANT(bool, has_residual, 4);
// Bit i: matrix i has a bias.
FUNCTION_CONSTANT(uint, biases, 5);
// Whether every expert of a row has an input of its own.
FUNCTION_CONSTANT(bool, input_per_expert, 6);

enum : uint { ROWS = 4, SIMDGROUPS = 2 };

// Rows of matrices that one simdgroup works on.
struct MatrixRows {
    device const uchar* at[ROWS];
};

// Rows of activations, and what the product needs of them.
struct Inputs {
    device const float* at[BATCH];
    float squares[BATCH];
};

// This thread's share of the products of all matrix rows with all inputs.
template <typename W>
inline void share_of_products(thread const MatrixRows& rows, thread Inputs& x, device const float* norm_weight, uint cols,
                              uint lane, thread float* sums) {
    for (uint i = 0; i < ROWS * BATCH; i++) sums[i] = 0.0f;
    for (uint t = 0; t < BATCH; t++) x.squares[t] = 0.0f;
    uint chunks = cols / 16;
    for (uint chunk = lane; chunk < chunks; chunk += simd_width) {
        float4 inputs[BATCH * 4];
        for (uint t = 0; t < BATCH; t++) {
            device const float4* from = (device const float4*)(x.at[t] + 16 * chunk);
            for (uint i = 0; i < 4; i++) inputs[4 * t + i] = from[i];
        }
        if (norm_first) {
            device const float4* weight = (device const float4*)(norm_weight + 16 * chunk);
            for (uint t = 0; t < BATCH; t++) {
                for (uint i = 0; i < 4; i++) {
                    float4 v = inputs[4 * t + i];
                    x.squares[t] += dot(v, v);
                    inputs[4 * t + i] = v * weight[i];
                }
            }
        }
        if (BATCH == 1) {
            Sixteen s;
            float4 sum = float4(0.0f);
            for (uint i = 0; i < 4; i++) {
                s.x[i] = inputs[i];
                sum += inputs[i];
            }
            s.sum = sum_of(sum);
            for (uint r = 0; r < ROWS; r++) sums[r] += dot16<W>(rows.at[r], chunk, s);
        } else {
            for (uint r = 0; r < ROWS; r++) {
                float w[16];
                decode16<W>(rows.at[r], chunk, w);
                for (uint t = 0; t < BATCH; t++) {
                    float4 sum = float4(0.0f);
                    for (uint i = 0; i < 4; i++) {
                        sum += inputs[4 * t + i] * float4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
                    }
                    sums[r * BATCH + t] += sum_of(sum);
                }
            }
        }
    }
    if (W::PLAIN) {
        for (uint i = 16 * chunks + lane; i < cols; i += simd_width) {
            for (uint t = 0; t < BATCH; t++) {
                float v = x.at[t][i];
                if (norm_first) {
                    x.squares[t] += v * v;
                    v *= norm_weight[i];
                }
                for (uint r = 0; r < ROWS; r++) sums[r * BATCH + t] += v * W::at(rows.at[r], i);
            }
        }
    }
}

// Grid: [tiles of ROWS rows of all matrices, batches of tokens]. With `gated`, matrix 0 is the gate and matrix 1 is
// what it lets through; their rows are taken in pairs.
kernel void matvec(constant MatvecArgs& args [[buffer(0)]],
                   device const float* x [[buffer(1)]],
                   device const uchar* w0 [[buffer(2)]],
                   device const uchar* w1 [[buffer(3)]],
                   device const uchar* w2 [[buffer(4)]],
                   device const float* bias0 [[buffer(5)]],
                   device const float* bias1 [[buffer(6)]],
                   device const float* bias2 [[buffer(7)]],
                   device const float* norm_weight [[buffer(8)]],
                   device const float* residual [[buffer(9)]],
                   device float* y0 [[buffer(10)]],
                   device float* y1 [[buffer(11)]],
                   device float* y2 [[buffer(12)]],
                   uint2 place [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint group [[simdgroup_index_in_threadgroup]]) {
    uint tile = place.x * SIMDGROUPS + group;
    uint rows_of_tile = gated ? uint(ROWS) / 2 : uint(ROWS);
    uint tiles0 = (args.rows0 + rows_of_tile - 1) / rows_of_tile;
    uint tiles1 = gated ? 0 : (args.rows1 + rows_of_tile - 1) / rows_of_tile;
    uint tiles2 = (args.rows2 + rows_of_tile - 1) / rows_of_tile;
    uint matrix = tile < tiles0 ? 0 : tile < tiles0 + tiles1 ? 1 : 2;
    if (tile >= tiles0 + tiles1 + tiles2) return;
    tile -= matrix == 0 ? 0 : matrix == 1 ? tiles0 : tiles0 + tiles1;
    uint count = matrix == 0 ? args.rows0 : matrix == 1 ? args.rows1 : args.rows2;
    device const uchar* w = matrix == 0 ? w0 : matrix == 1 ? w1 : w2;
    device const float* bias = matrix == 0 ? bias0 : matrix == 1 ? bias1 : bias2;
    device float* y = matrix == 0 ? y0 : matrix == 1 ? y1 : y2;
    bool has_bias = (biases >> matrix & 1) != 0;

    // Rows and tokens beyond the last one repeat it, and are not written.
    MatrixRows rows;
    uint first = tile * rows_of_tile;
    for (uint r = 0; r < ROWS; r++) {
        uint row = min(first + r % rows_of_tile, count - 1);
        rows.at[r] = (gated && r >= rows_of_tile ? w1 : w) + ulong(row) * args.row_bytes;
    }
    Inputs inputs;
    uint token = place.y * BATCH;
    for (uint t = 0; t < BATCH; t++) inputs.at[t] = x + ulong(min(token + t, args.tokens - 1)) * args.cols;
    float sums[ROWS * BATCH];
    share_of_products<WEIGHT>(rows, inputs, norm_weight, args.cols, lane, sums);

    for (uint t = 0; t < BATCH; t++) {
        float inverse = norm_first ? rsqrt(simd_sum(inputs.squares[t]) / float(args.cols) + args.eps) : 1.0f;
        for (uint r = 0; r < rows_of_tile; r++) {
            float value = simd_sum(sums[r * BATCH + t]) * inverse;
            uint row = first + r;
            bool inside = row < count && token + t < args.tokens;
            if (has_bias && inside) value += bias[row];
            if (gated) {
                float up = simd_sum(sums[(rows_of_tile + r) * BATCH + t]) * inverse;
                if ((biases & 2) != 0 && inside) up += bias1[row];
                value = activate(value) * up;
            }
            ulong at = ulong(token + t) * count + row;
            if (inside && lane == 0) {
                if (has_residual) value += residual[at];
                y[at] = value;
            }
        }
    }
}

// Products with the matrices of chosen experts. Grid: [tiles of rows, experts of a row, tokens]; BATCH is 1.
// x [tokens, cols] or [tokens, used * cols], ids [tokens, used], y [tokens, used * rows], bias [experts, rows].
kernel void matvec_experts(constant ExpertArgs& args [[buffer(0)]],
                           device const float* x [[buffer(1)]],
                           device const uchar* w [[buffer(2)]],
                           device const int* ids [[buffer(3)]],
                           device float* y [[buffer(4)]],
                           device const float* bias [[buffer(5)]],
                           uint3 place [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint group [[simdgroup_index_in_threadgroup]]) {
    uint first = (place.x * SIMDGROUPS + group) * ROWS;
    if (first >= args.rows) return;
    ulong slot = ulong(place.z) * args.used + place.y;
    ulong row_of_matrix = ulong(uint(ids[slot])) * args.rows;
    MatrixRows rows;
    for (uint r = 0; r < ROWS; r++) rows.at[r] = w + (row_of_matrix + min(first + r, args.rows - 1)) * args.row_bytes;
    Inputs inputs;
    for (uint t = 0; t < BATCH; t++) inputs.at[t] = x + (input_per_expert ? slot : ulong(place.z)) * args.cols;
    float sums[ROWS * BATCH];
    share_of_products<WEIGHT>(rows, inputs, x, args.cols, lane, sums);
    for (uint r = 0; r < ROWS; r++) {
        float value = simd_sum(sums[r * BATCH]);
        if (lane != 0 || first + r >= args.rows) continue;
        if (biases != 0) value += bias[row_of_matrix + first + r];
        y[slot * args.rows + first + r] = value;
    }
}
