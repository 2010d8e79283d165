// Root-mean-square, layer and L2 norms, with what comes right after them.
#include "args.h"
#include "common.h"

FUNCTION_CONSTANT(bool, subtract_mean, 1);
FUNCTION_CONSTANT(bool, has_weight, 2);
FUNCTION_CONSTANT(bool, has_bias, 3);
FUNCTION_CONSTANT(bool, has_residual, 4);
// Divides by the length of the group in place of its root mean square.
FUNCTION_CONSTANT(bool, by_length, 5);

// y = norm(x) * weight + bias + residual for groups of `cols` elements; a threadgroup takes one group of one row.
kernel void norm(constant NormArgs& args [[buffer(0)]],
                 device const float* x [[buffer(1)]],
                 device const float* weight [[buffer(2)]],
                 device const float* bias [[buffer(3)]],
                 device const float* residual [[buffer(4)]],
                 device float* y [[buffer(5)]],
                 uint2 place [[threadgroup_position_in_grid]],
                 uint tid [[thread_index_in_threadgroup]],
                 uint2 size [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint group [[simdgroup_index_in_threadgroup]],
                 uint groups [[simdgroups_per_threadgroup]]) {
    SHARED(float, partial, 32);
    ulong first = (ulong(place.y) * args.groups + place.x) * args.cols;
    device const float* from = x + first;
    float mean = 0.0f;
    if (subtract_mean) {
        float sum = 0.0f;
        for (uint i = tid; i < args.cols; i += size.x) sum += from[i];
        mean = threadgroup_sum(sum, partial, lane, group, groups) / float(args.cols);
    }
    float squares = 0.0f;
    for (uint i = tid; i < args.cols; i += size.x) {
        float v = from[i] - mean;
        squares += v * v;
    }
    float total = threadgroup_sum(squares, partial, lane, group, groups);
    float inverse = rsqrt(by_length ? max(total, args.eps * args.eps) : total / float(args.cols) + args.eps);
    for (uint i = tid; i < args.cols; i += size.x) {
        float v = (from[i] - mean) * inverse;
        if (has_weight) v *= weight[i];
        if (has_bias) v += bias[i];
        if (has_residual) v += residual[first + i];
        y[first + i] = v;
    }
}
