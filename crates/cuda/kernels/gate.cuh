// Activation functions of gated products.
#pragma once
#include "modes.h"
#include "ptx.cuh"

INLINE float activate(uint32_t kind, float x) {
    switch (kind) {
    case GATE_SILU: return __fdividef(x, 1.0f + __expf(-x));
    case GATE_GELU: {
        const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + tanhf(inner));
    }
    case GATE_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case GATE_GELU_QUICK: return __fdividef(x, 1.0f + __expf(-1.702f * x));
    case GATE_RELU: return fmaxf(x, 0.0f);
    default: {
        const float y = fmaxf(x, 0.0f);
        return y * y;
    }
    }
}
