// Activation functions of gated products. `other` is what becomes of the other factor.
#pragma once
#include "modes.h"
#include "ptx.cuh"

// x * sigmoid(x * (a + b * x^2)): what most of them are. The form of GELU with a tanh is one, since
// (1 + tanh(u)) / 2 = sigmoid(2u).
struct Swish {
    float a, b;
    INLINE explicit Swish(uint32_t kind)
        : a(kind == GATE_SILU ? 1.0f : kind == GATE_GELU_QUICK ? 1.702f : 1.5957691216f), b(kind == GATE_GELU ? 0.0713548163f : 0.0f) {}
    INLINE float operator()(float x) const { return __fdividef(x, 1.0f + __expf(-x * (a + b * x * x))); }
    INLINE static float other(float y) { return y; }
};
INLINE bool is_swish(uint32_t kind) { return kind == GATE_SILU || kind == GATE_GELU || kind == GATE_GELU_QUICK; }

// The others.
struct OtherGate {
    uint32_t kind;
    INLINE float operator()(float x) const {
        if (kind == GATE_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
        const float y = fmaxf(x, 0.0f);
        return kind == GATE_RELU ? y : y * y;
    }
    INLINE static float other(float y) { return y; }
};
INLINE float activate(uint32_t kind, float x) { return is_swish(kind) ? Swish(kind)(x) : OtherGate{kind}(x); }

// The unit of gpt-oss, which limits both factors.
struct Clamped {
    float alpha, limit;
    INLINE float operator()(float x) const {
        const float gate = fminf(x, limit);
        return __fdividef(gate, 1.0f + __expf(-alpha * gate));
    }
    INLINE float other(float y) const { return fminf(fmaxf(y, -limit), limit) + 1.0f; }
};
