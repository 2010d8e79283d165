// Operations element by element, and copies of rows.
#include "args.h"
#include "activation.h"

kernel void add(constant ElementArgs& args [[buffer(0)]],
                device const float* a [[buffer(1)]],
                device const float* b [[buffer(2)]],
                device float* y [[buffer(3)]],
                uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = a[i] + b[i];
}

kernel void mul(constant ElementArgs& args [[buffer(0)]],
                device const float* a [[buffer(1)]],
                device const float* b [[buffer(2)]],
                device float* y [[buffer(3)]],
                uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = a[i] * b[i];
}

// Each row times the elements of a weight.
kernel void mul_weight(constant RowsArgs& args [[buffer(0)]],
                       device const float* x [[buffer(1)]],
                       device const float* weight [[buffer(2)]],
                       device float* y [[buffer(3)]],
                       uint2 place [[thread_position_in_grid]]) {
    ulong i = ulong(place.y) * args.cols + place.x;
    if (place.x < args.cols && place.y < args.rows) y[i] = x[i] * weight[place.x];
}

kernel void glu(constant ElementArgs& args [[buffer(0)]],
                device const float* gate [[buffer(1)]],
                device const float* up [[buffer(2)]],
                device float* y [[buffer(3)]],
                uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = activate(gate[i]) * up[i];
}

// The gated unit of gpt-oss.
kernel void glu_clamped(constant ClampedGluArgs& args [[buffer(0)]],
                        device const float* gate [[buffer(1)]],
                        device const float* up [[buffer(2)]],
                        device float* y [[buffer(3)]],
                        uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    float g = min(gate[i], args.limit);
    float u = max(min(up[i], args.limit), -args.limit);
    y[i] = g / (1.0f + exp(-args.alpha * g)) * (u + 1.0f);
}

kernel void activate_all(constant ElementArgs& args [[buffer(0)]],
                         device const float* x [[buffer(1)]],
                         device float* y [[buffer(2)]],
                         uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = activate(x[i]);
}

kernel void scale(constant ElementArgs& args [[buffer(0)]],
                  device const float* x [[buffer(1)]],
                  device float* y [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = args.factor * x[i];
}

// The factor is the cap.
kernel void softcap(constant ElementArgs& args [[buffer(0)]],
                    device const float* x [[buffer(1)]],
                    device float* y [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = args.factor * saturating_tanh(x[i] / args.factor);
}

// Rows of x by their indices: y [rows, cols].
kernel void gather(constant RowsArgs& args [[buffer(0)]],
                   device const uint* x [[buffer(1)]],
                   device const int* indices [[buffer(2)]],
                   device uint* y [[buffer(3)]],
                   uint2 place [[thread_position_in_grid]]) {
    if (place.x >= args.cols || place.y >= args.rows) return;
    y[ulong(place.y) * args.cols + place.x] = x[ulong(indices[place.y]) * args.cols + place.x];
}
