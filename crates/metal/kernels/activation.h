// Activation functions, chosen by a function constant.
#pragma once
#include "common.h"

// The order of `Activation` in args.rs.
enum { SILU = 0, GELU = 1, GELU_ERF = 2, GELU_QUICK = 3, RELU = 4, RELU_SQUARED = 5, SIGMOID = 6 };

FUNCTION_CONSTANT(uint, activation, 1);

// tanh from exp, which saturates where exp overflows.
inline float saturating_tanh(float x) {
    float e = exp(-2.0f * fabs(x));
    float y = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -y : y;
}

// 1 - erf(x) for x >= 0, relative error below 1.2e-7: the Chebyshev fit `erfcc` of Numerical Recipes.
inline float erfc_positive(float x) {
    float t = 1.0f / (1.0f + 0.5f * x);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return t * exp(p - x * x);
}

inline float activate(float x) {
    switch (activation) {
        case SILU: return x / (1.0f + exp(-x));
        case GELU: {
            const float c = 0.7978845608f;
            return 0.5f * x * (1.0f + saturating_tanh(c * (x + 0.044715f * x * x * x)));
        }
        case GELU_ERF: {
            float tail = erfc_positive(fabs(x) * 0.70710678f);
            return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
        }
        case GELU_QUICK: return x / (1.0f + exp(-1.702f * x));
        case RELU: return max(x, 0.0f);
        case SIGMOID: return 1.0f / (1.0f + exp(-x));
        default: {
            float y = max(x, 0.0f);
            return y * y;
        }
    }
}
