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

// Columns of two values side by side. Grid: [columns, rows] in threads.
kernel void join(constant ColumnsArgs& args [[buffer(0)]],
                 device const float* a [[buffer(1)]],
                 device const float* b [[buffer(2)]],
                 device float* y [[buffer(3)]],
                 uint2 place [[thread_position_in_grid]]) {
    if (place.x >= args.cols) return;
    uint beyond = args.cols - args.from;
    bool is_first = place.x < args.from;
    ulong at = is_first ? ulong(place.y) * args.from + place.x : ulong(place.y) * beyond + place.x - args.from;
    y[ulong(place.y) * args.cols + place.x] = is_first ? a[at] : b[at];
}

// Some columns of a value.
kernel void columns(constant ColumnsArgs& args [[buffer(0)]],
                    device const float* x [[buffer(1)]],
                    device float* y [[buffer(2)]],
                    uint2 place [[thread_position_in_grid]]) {
    if (place.x >= args.cols) return;
    y[ulong(place.y) * args.cols + place.x] = x[ulong(place.y) * args.from + args.first + place.x];
}

// x + (y - x) * (m + row).
FUNCTION_CONSTANT(bool, has_value, 2);
FUNCTION_CONSTANT(bool, has_row, 3);

kernel void lerp(constant LerpArgs& args [[buffer(0)]],
                 device const float* x [[buffer(1)]],
                 device const float* y [[buffer(2)]],
                 device const float* m [[buffer(3)]],
                 device const float* row [[buffer(4)]],
                 device float* out [[buffer(5)]],
                 uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    float by = 0.0f;
    if (has_value) by += m[i];
    if (has_row) by += row[i % args.cols];
    out[i] = x[i] + (y[i] - x[i]) * by;
}

// v by the score of each head, the sum of a * b * weight over its elements. A simdgroup takes a head of a row.
kernel void bonus(constant BonusArgs& args [[buffer(0)]],
                  device const float* a [[buffer(1)]],
                  device const float* b [[buffer(2)]],
                  device const float* v [[buffer(3)]],
                  device const float* weight [[buffer(4)]],
                  device float* y [[buffer(5)]],
                  uint2 place [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    ulong first = (ulong(place.y) * args.heads + place.x) * args.head_dim;
    device const float* factors = weight + place.x * args.head_dim;
    float score = 0.0f;
    for (uint i = lane; i < args.head_dim; i += simd_width) score += a[first + i] * b[first + i] * factors[i];
    score = simd_sum(score);
    for (uint i = lane; i < args.head_dim; i += simd_width) y[first + i] = v[first + i] * score;
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
