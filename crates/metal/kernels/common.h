// What every kernel file includes: the standard library, two macros of the dialect, reductions.
//
// The kernels are written in a part of the Metal Shading Language that also compiles as C++ for the emulator:
// - threadgroup arrays through SHARED, function constants through FUNCTION_CONSTANT;
// - vectors made by constructors, never by casts; every pointer with its address space;
// - simdgroup matrices through load, store and multiply_accumulate alone;
// - bf16 as its bits, so that no kernel depends on the type.
#pragma once
#include <metal_stdlib>
using namespace metal;

#ifndef SHARED
#define SHARED(type, name, count) threadgroup type name[count]
#define FUNCTION_CONSTANT(type, name, index) constant type name [[function_constant(index)]]
#endif

// Threads of a simdgroup: 32 on Apple's and newer AMD GPUs, 64 on older ones.
FUNCTION_CONSTANT(uint, simd_width, 0);

// Sum over the whole threadgroup; `partial` has a slot for each simdgroup.
inline float threadgroup_sum(float x, threadgroup float* partial, uint lane, uint group, uint groups) {
    x = simd_sum(x);
    // An earlier sum may still be read.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[group] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint g = 0; g < groups; g++) total += partial[g];
    return total;
}

inline float bf16_value(uint bits) {
    return as_type<float>(bits << 16);
}

// The nearest bf16, ties to even; `x` is finite.
inline ushort bf16_bits(float x) {
    uint bits = as_type<uint>(x);
    return ushort((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
