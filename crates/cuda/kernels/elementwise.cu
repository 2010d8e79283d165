// Operations on single elements, and the choice of rows.
#include "common.cuh"

// In the order of graph::op::Activation.
enum { SILU, GELU, GELU_ERF, GELU_QUICK, RELU, RELU_SQUARED, SIGMOID };

__device__ inline float activate(uint32_t kind, float x) {
    switch (kind) {
    case SILU: return x / (1.0f + expf(-x));
    case GELU: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    // The complement keeps its precision where the sum would be near 0.
    case GELU_ERF: return 0.5f * x * erfcf(-0.7071067812f * x);
    case GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    case RELU: return fmaxf(x, 0.0f);
    case SIGMOID: return 1.0f / (1.0f + expf(-x));
    default: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    }
}

// In the order of args::ElementOp.
enum { ADD, SCALE, SOFTCAP, ACTIVATE, GLU, GLU_CLAMPED, MUL, MUL_WEIGHT };

// The gated unit of gpt-oss.
__device__ inline float clamped_unit(float gate, float up, float alpha, float limit) {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
}

KERNEL(256, elementwise, ElementwiseArgs) {
    wait_for_last();
    let_next_start();
    const uint64_t n = uint64_t(*a.rows) * a.cols, step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        const float x = a.x[i];
        float y;
        switch (a.op) {
        case ADD: y = x + a.y[i]; break;
        case SCALE: y = x * a.factor; break;
        case SOFTCAP: y = a.factor * tanhf(x / a.factor); break;
        case ACTIVATE: y = activate(a.activation, x); break;
        case GLU: y = activate(a.activation, x) * a.y[i]; break;
        case GLU_CLAMPED: y = clamped_unit(x, a.y[i], a.factor, a.limit); break;
        case MUL: y = x * a.y[i]; break;
        default: y = x * a.y[i % a.cols]; break;
        }
        a.out[i] = y;
    }
}

// Columns of two values side by side, or some of one; a block takes a row.
KERNEL(256, columns, ColumnsArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    const float* x = a.x + uint64_t(row) * a.from + a.first;
    const float* y = a.y ? a.y + uint64_t(row) * (a.cols - a.from) : nullptr;
    float* out = a.out + uint64_t(row) * a.cols;
    for (uint32_t i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = y && i >= a.from ? y[i - a.from] : x[i];
}

// `x + (y - x) * (m + row)`.
KERNEL(256, lerp, LerpArgs) {
    wait_for_last();
    let_next_start();
    const uint64_t n = uint64_t(*a.rows) * a.cols, step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        const float by = (a.m ? a.m[i] : 0.0f) + (a.row ? a.row[i % a.cols] : 0.0f);
        a.out[i] = a.x[i] + (a.y[i] - a.x[i]) * by;
    }
}

// Values by the score of each head; a warp takes a head of a row.
KERNEL(128, bonus, BonusArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t lane = threadIdx.x % 32, at = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (at / a.heads >= *a.rows) return;
    const uint64_t first = uint64_t(at) * a.head_dim;
    const float* weight = a.weight + at % a.heads * a.head_dim;
    float score = 0.0f;
    for (uint32_t i = lane; i < a.head_dim; i += 32) score += a.a[first + i] * a.b[first + i] * weight[i];
    score = over_warp<Sum>(score);
    for (uint32_t i = lane; i < a.head_dim; i += 32) a.out[first + i] = a.v[first + i] * score;
}

// Rows by their numbers; elements of four bytes of any kind.
KERNEL(256, gather, GatherArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x;
    if (row >= *a.rows) return;
    const uint32_t* x = a.x + uint64_t(a.indices[row]) * a.cols;
    uint32_t* out = a.out + uint64_t(row) * a.cols;
    for (uint32_t i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = x[i];
}
