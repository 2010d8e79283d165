// Operations on single elements, and the choice of rows.
#include "common.cuh"

// In the order of graph::op::Activation.
enum { SILU, GELU, GELU_ERF, GELU_QUICK, RELU, RELU_SQUARED };

__device__ inline float activate(uint32_t kind, float x) {
    switch (kind) {
    case SILU: return x / (1.0f + expf(-x));
    case GELU: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    // The complement keeps its precision where the sum would be near 0.
    case GELU_ERF: return 0.5f * x * erfcf(-0.7071067812f * x);
    case GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    case RELU: return fmaxf(x, 0.0f);
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
