// Arithmetic of f64 numbers that are at least 0, on their bits, for devices without f64. Subnormal numbers do not occur.
#pragma once
#include "common.h"

#define F64_ONE (ulong(0x3ff) << 52)

// An f32 number that is 0 or normal.
inline ulong f64_of(float x) {
    uint bits = as_type<uint>(x);
    return bits == 0 ? 0 : (ulong((bits >> 23) + 896) << 52) | (ulong(bits & 0x7fffff) << 29);
}

inline ulong f64_from_halves(uint low, uint high) {
    return ulong(high) << 32 | low;
}

// The significand, whose first bit is bit 62.
inline ulong f64_significand(ulong x) {
    return ((x & ((ulong(1) << 52) - 1)) | ulong(1) << 52) << 10;
}

// Rounds to nearest, ties to even: a significand whose first bit is bit 62 or 63 and whose lowest stands for all below.
inline ulong f64_rounded(ulong significand, uint exponent) {
    if (significand >> 63 != 0) {
        significand = significand >> 1 | (significand & 1);
        exponent++;
    }
    uint rest = uint(significand & 0x3ff);
    ulong kept = significand >> 10;
    if (rest > 0x200 || (rest == 0x200 && (kept & 1) != 0)) kept++;
    // Without its first bit; where rounding made one bit more, the exponent takes it.
    return (ulong(exponent) << 52) + (kept - (ulong(1) << 52));
}

// Shifted right, with a lowest bit that says whether anything was lost.
inline ulong f64_shifted(ulong significand, uint by) {
    if (by == 0) return significand;
    if (by > 62) return 1;
    return significand >> by | ulong(significand << (64 - by) != 0);
}

inline ulong f64_add(ulong a, ulong b) {
    ulong large = a > b ? a : b, small = a > b ? b : a;
    if (small == 0) return large;
    uint exponent = uint(large >> 52);
    ulong lower = f64_shifted(f64_significand(small), exponent - uint(small >> 52));
    return f64_rounded(f64_significand(large) + lower, exponent);
}

// a - b for a at least b.
inline ulong f64_subtract(ulong a, ulong b) {
    if (b == 0) return a;
    uint exponent = uint(a >> 52);
    ulong difference = f64_significand(a) - f64_shifted(f64_significand(b), exponent - uint(b >> 52));
    if (difference == 0) return 0;
    while (difference >> 62 == 0) {
        difference <<= 1;
        exponent--;
    }
    return f64_rounded(difference, exponent);
}

inline ulong f64_multiply(ulong a, ulong b) {
    if (a == 0 || b == 0) return 0;
    // 53 bits times 53 bits, in halves of 32.
    ulong x = f64_significand(a) >> 10, y = f64_significand(b) >> 10;
    ulong x_low = x & 0xffffffff, x_high = x >> 32, y_low = y & 0xffffffff, y_high = y >> 32;
    ulong low = x_low * y_low;
    ulong middle = x_high * y_low + (low >> 32);
    ulong other = x_low * y_high + (middle & 0xffffffff);
    ulong high = x_high * y_high + (middle >> 32) + (other >> 32);
    low = other << 32 | (low & 0xffffffff);
    ulong product = high << 22 | low >> 42 | ulong(low << 22 != 0);
    return f64_rounded(product, uint(a >> 52) + uint(b >> 52) - 1023);
}
