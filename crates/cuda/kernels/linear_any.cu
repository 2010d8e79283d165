// Products with weights of any type as they lie in the file: decoded to f32, summed in f32. Right for every type and
// shape; slow, since weights are decoded again for every eight rows.
#include "weights.cuh"

// Rows of x that a warp multiplies with a decoded piece.
constexpr uint32_t ROWS = 8;

// The products of one row of the matrix with up to ROWS rows of x, in every lane. The order of the sum is the same
// whatever the number of rows.
__device__ inline void row_products(
    const RawMatrix& m, uint64_t row, const float* x, uint64_t stride, uint32_t rows, float* sums
) {
    for (uint32_t r = 0; r < ROWS; r++) sums[r] = 0.0f;
    for (uint32_t piece = threadIdx.x % 32; PIECE_ELEMENTS * piece < m.cols; piece += 32) {
        float w[PIECE_ELEMENTS];
        const uint32_t n = decode_piece(m, row, piece, w);
        for (uint32_t r = 0; r < ROWS; r++) {
            if (r >= rows) break;
            const float* xr = x + r * stride + PIECE_ELEMENTS * piece;
            for (uint32_t j = 0; j < n; j++) sums[r] += w[j] * xr[j];
        }
    }
    for (uint32_t r = 0; r < ROWS; r++) sums[r] = over_warp<Sum>(sums[r]);
}

// A warp for each output column and each ROWS rows.
KERNEL(128, linear_any, LinearAnyArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t out = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, first = blockIdx.y * ROWS;
    const uint32_t all = *a.rows;
    if (out >= a.outs || first >= all) return;
    const uint32_t rows = all - first < ROWS ? all - first : ROWS;
    float sums[ROWS];
    row_products(a.matrix, out, a.x + uint64_t(first) * a.matrix.cols, a.matrix.cols, rows, sums);
    const float bias = a.bias == nullptr ? 0.0f : a.bias[out];
    if (threadIdx.x % 32 != 0) return;
    for (uint32_t r = 0; r < rows; r++) a.out[uint64_t(first + r) * a.outs + out] = sums[r] + bias;
}

// A warp for each output column of each chosen expert of each row.
KERNEL(128, expert_linear_any, ExpertLinearAnyArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t out = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t row = blockIdx.x / a.used, slot = blockIdx.x % a.used;
    if (out >= a.outs || row >= *a.rows) return;
    const uint64_t pair = uint64_t(row) * a.used + slot;
    const float* x = a.x + (a.shared_input ? row : pair) * a.matrix.cols;
    float sums[ROWS];
    row_products(a.matrix, uint64_t(a.ids[pair]) * a.outs + out, x, 0, 1, sums);
    const float bias = a.bias == nullptr ? 0.0f : a.bias[uint64_t(a.ids[pair]) * a.outs + out];
    if (threadIdx.x % 32 == 0) a.out[pair * a.outs + out] = sums[0] + bias;
}
