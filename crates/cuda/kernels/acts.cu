// Activations for products: int8 of one row, 16-bit images of many; with the sum and the norm before them.
#ifndef WOOTZ_EMULATE
#include "acts.cuh"
#include "matvec.cuh"

namespace {

constexpr int ROW_THREADS = 256;
// Chunks of 4 columns that a thread keeps.
constexpr int KEPT = 8;

// Four columns in the order of steps: consecutive threads take t = 0..3 of one step.
INLINE uint32_t column_of(uint32_t i) { return i / 64 * 256 + i % 4 * 64 + i % 64 / 4 * 4; }

INLINE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

INLINE float4 load_sum(const ActsArgs& a, size_t at) {
    float4 v = __ldcg(reinterpret_cast<const float4*>(a.x + at));
    if (a.y) v = add4(v, __ldcg(reinterpret_cast<const float4*>(a.y + at)));
    if (a.y && a.y_tail) v = add4(v, __ldcg(reinterpret_cast<const float4*>(a.y_tail + at)));
    return v;
}

// One row a block. f16 rows are divided by a power of two that brings their largest value below 1024.
template <bool BF16> INLINE void pack(const ActsArgs& a) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, pieces = a.k_tiles * 64;
    if (a.rows && row >= *a.rows) return;
    const size_t start = static_cast<size_t>(row) * a.cols;
    float4 kept[KEPT];
    float squares = 0, top = 0;
#pragma unroll
    for (int n = 0; n < KEPT; n++) kept[n] = make_float4(0, 0, 0, 0);
    auto take = [&](float4 v, uint32_t c) {
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        if (a.norm) {
            const float4 w = __ldg(reinterpret_cast<const float4*>(a.norm + c));
            v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
        }
        top = fmaxf(top, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        return v;
    };
    auto place = [&](uint32_t i) { return threadIdx.x + i * ROW_THREADS; };
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        const uint32_t c = column_of(place(n));
        if (place(n) >= pieces || c >= a.cols) continue;
        const float4 v = load_sum(a, start + c);
        if (a.x_out) *reinterpret_cast<float4*>(a.x_out + start + c) = v;
        kept[n] = take(v, c);
    }
    for (uint32_t n = KEPT; n * ROW_THREADS < pieces; n++) {
        const uint32_t c = column_of(place(n));
        if (place(n) >= pieces || c >= a.cols) continue;
        const float4 v = load_sum(a, start + c);
        if (a.x_out) *reinterpret_cast<float4*>(a.x_out + start + c) = v;
        take(v, c);
    }
    float factor = 1;
    if (a.norm) factor = rsqrtf(over_block<Sum>(squares) / float(a.cols) + a.eps);
    if (!BF16) {
        top = over_block<Max>(top) * factor;
        // 2 to the power of top's exponent less 9; 1 for zeros and what is not finite.
        const uint32_t exponent = __float_as_uint(top) >> 23;
        const bool normal = exponent > 9 && exponent < 255;
        if (threadIdx.x == 0) a.scale[row] = normal ? __uint_as_float((exponent - 9) << 23) : 1.0f;
        if (normal) factor *= __uint_as_float((127 + 127 + 9 - exponent) << 23);
    }
    auto put = [&](float4 v, uint32_t c) {
        uint8_t* at = a.out + image_offset(row, c, a.groups);
        *reinterpret_cast<uint32_t*>(at) = pack_pair<BF16>(v.x * factor, v.y * factor);
        at = a.out + image_offset(row, c + 2, a.groups);
        *reinterpret_cast<uint32_t*>(at) = pack_pair<BF16>(v.z * factor, v.w * factor);
    };
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        if (place(n) < pieces) put(kept[n], column_of(place(n)));
    }
    for (uint32_t n = KEPT; n * ROW_THREADS < pieces; n++) {
        const uint32_t c = column_of(place(n));
        if (place(n) >= pieces) continue;
        put(c < a.cols ? take(load_sum(a, start + c), c) : make_float4(0, 0, 0, 0), c);
    }
}

}  // namespace

KERNEL(ROW_THREADS, pack_rows_f16, ActsArgs) { pack<false>(a); }
KERNEL(ROW_THREADS, pack_rows_bf16, ActsArgs) { pack<true>(a); }

// One row to int8 activations: for mat-vecs with more columns than they can normalise themselves.
KERNEL(MATVEC_THREADS, quantize_row, ActsArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t chunks = a.k_tiles * 32;
    auto load = [&](uint32_t i) {
        Float8 x = {};
        if (8 * i >= a.cols) return x;
        x = load8(a.x, i);
        if (a.y) add8(x, load8(a.y, i));
        if (a.y && a.y_tail) add8(x, load8(a.y_tail, i));
        return x;
    };
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < chunks; i += MATVEC_THREADS) {
        const Float8 x = load(i);
#pragma unroll
        for (int e = 0; e < 8; e++) squares += x.v[e] * x.v[e];
    }
    const float factor = a.norm ? rsqrtf(over_block<Sum>(squares) / float(a.cols) + a.eps) : 1.0f;
    for (uint32_t i = threadIdx.x; i < chunks; i += MATVEC_THREADS) {
        Float8 x = load(i);
        if (a.x_out && 8 * i < a.cols) store8(a.x_out, i, x);
        if (a.norm && 8 * i < a.cols) {
            const Float8 w = load8(a.norm, i);
#pragma unroll
            for (int e = 0; e < 8; e++) x.v[e] *= factor * w.v[e];
        }
        put_int8(x, i, a.out);
    }
}
#endif
