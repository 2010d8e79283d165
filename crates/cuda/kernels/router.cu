// The router of experts: its products in f32, and the choice of few rows with the sum and the norm before.
#ifndef WOOTZ_EMULATE
#include "choice.cuh"
#include "ptx.cuh"

INLINE float dot4(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
INLINE float4 sum4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

constexpr int ROUTER_THREADS = 256;
// Threads that share an expert, experts of a block, and vectors of 4 weights that a thread reads before it waits.
constexpr int EXPERT_THREADS = 64, BLOCK_EXPERTS = ROUTER_THREADS / EXPERT_THREADS, WEIGHTS_AHEAD = 8;

// Several blocks a row: each makes the norm for itself; the one that ends last has all scores and chooses.
KERNEL(ROUTER_THREADS, route_rows, RouterArgs) {
    __shared__ float parts[ROUTER_THREADS / 32];
    DYNAMIC_SHARED(float4, h);
    const uint32_t vectors = a.cols / 4, t = threadIdx.x % EXPERT_THREADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t expert = blockIdx.x * BLOCK_EXPERTS + threadIdx.x / EXPERT_THREADS;
    const bool inside = expert < a.route.experts;
    const float4* w = reinterpret_cast<const float4*>(a.matrix) + static_cast<size_t>(expert) * vectors;
    auto load = [&](uint32_t at) { return inside && at < vectors ? __ldg(w + at) : make_float4(0, 0, 0, 0); };
    float4 ahead[WEIGHTS_AHEAD];
#pragma unroll
    for (int i = 0; i < WEIGHTS_AHEAD; i++) ahead[i] = load(t + EXPERT_THREADS * i);
    // Those that registers do not hold come into the cache meanwhile.
    for (uint32_t at = t + EXPERT_THREADS * WEIGHTS_AHEAD; inside && at < vectors; at += EXPERT_THREADS) prefetch(w + at);
    float sum = a.bias && inside && t == 0 ? __ldg(a.bias + expert) : 0.0f;
    const uint32_t row = blockIdx.y;
    const bool held = row < *a.route.rows;
    wait_for_last();
    let_next_start();
    if (!held) return;

    const size_t start = static_cast<size_t>(row) * vectors;
    auto read = [&](const float* from, uint32_t at) { return __ldcg(reinterpret_cast<const float4*>(from) + start + at); };
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < vectors; i += ROUTER_THREADS) {
        float4 x = read(a.x, i);
        if (a.y) x = sum4(x, read(a.y, i));
        for (uint32_t p = 0; p < a.tails; p++) x = sum4(x, read(a.y_tail + p * a.slab, i));
        if (a.x_out && blockIdx.x == 0) reinterpret_cast<float4*>(a.x_out)[start + i] = x;
        squares += dot4(x, x);
        h[i] = x;
    }
    const float factor = rsqrtf(over_block<Sum>(squares) / float(a.cols) + a.eps);
    for (uint32_t i = threadIdx.x; i < vectors; i += ROUTER_THREADS) {
        const float4 n = __ldg(reinterpret_cast<const float4*>(a.norm) + i), x = h[i];
        h[i] = make_float4(x.x * factor * n.x, x.y * factor * n.y, x.z * factor * n.z, x.w * factor * n.w);
        if (blockIdx.x + 1 == gridDim.x) reinterpret_cast<float4*>(a.out)[start + i] = h[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WEIGHTS_AHEAD; i++) {
        const uint32_t at = t + EXPERT_THREADS * i;
        if (at < vectors) sum += dot4(ahead[i], h[at]);
    }
    for (uint32_t at = t + EXPERT_THREADS * WEIGHTS_AHEAD; at < vectors; at += EXPERT_THREADS) sum += dot4(load(at), h[at]);
    sum = over_warp<Sum>(sum);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (t == 0 && inside) a.scores[row * a.route.experts + expert] = parts[warp] + parts[warp + 1];
    __syncthreads();
    if (warp != 0) return;
    uint32_t arrived = 0;
    if (lane == 0) arrived = arrive_at(a.counters + row);
    arrived = __shfl_sync(WARP, arrived, 0);
    __syncwarp();
    if (arrived != gridDim.x) return;
    if (lane == 0) a.counters[row] = 0;
    choose_experts(a.route, row, reinterpret_cast<float*>(h + vectors));
}

// ---- products of many rows: a warp has OUTS outputs of some rows

constexpr int LINEAR_THREADS = 256;
constexpr uint32_t LINEAR_ROWS = 8;

// Adds N values over a warp, 32 / N lanes a value: in lane L the sum of value L / (32 / N).
template <int N> INLINE float sums_over_warp(float (&v)[N]) {
    const uint32_t lane = threadIdx.x % 32;
    int n = N;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        if (n == 1) {
            v[0] += __shfl_xor_sync(WARP, v[0], step);
            continue;
        }
        n /= 2;
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            if (i >= n) continue;
            const float keep = upper ? v[i + n] : v[i], give = upper ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(WARP, give, step);
        }
    }
    return v[0];
}

// COL_WARPS of a block's warps share the columns of the same outputs, the others have rows of their own.
template <int OUTS, int COL_WARPS> INLINE void linear_f32(const LinearF32Args& a) {
    constexpr uint32_t WARPS = LINEAR_THREADS / 32, VALUES = OUTS * LINEAR_ROWS, N = VALUES < 32 ? VALUES : 32, LANES = 32 / N;
    __shared__ float parts[WARPS][VALUES];
    wait_for_last();
    let_next_start();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, vectors = a.cols / 4, all = *a.rows, out = blockIdx.x * OUTS;
    const uint32_t first = (blockIdx.y * (WARPS / COL_WARPS) + warp / COL_WARPS) * LINEAR_ROWS;
    const float4* w = reinterpret_cast<const float4*>(a.matrix) + static_cast<size_t>(out) * vectors;
    const float4* x = reinterpret_cast<const float4*>(a.x) + static_cast<size_t>(first) * vectors;
    const uint32_t rows = first < all ? min(all - first, LINEAR_ROWS) : 0, outs = min(a.outs - out, OUTS);
    float sum[VALUES / N][N] = {};
    for (uint32_t i = warp % COL_WARPS * 32 + lane; i < vectors && rows > 0; i += 32 * COL_WARPS) {
        float4 m[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) m[o] = o < outs ? __ldg(w + o * vectors + i) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < LINEAR_ROWS; r++) {
            const float4 v = r < rows ? __ldg(x + r * vectors + i) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int o = 0; o < OUTS; o++) sum[(o * LINEAR_ROWS + r) / N][(o * LINEAR_ROWS + r) % N] += dot4(m[o], v);
        }
    }
#pragma unroll
    for (int part = 0; part < VALUES / N; part++) {
        const float mine = sums_over_warp(sum[part]);
        if (lane % LANES == 0) parts[warp][part * N + lane / LANES] = mine;
    }
    __syncthreads();
    if (warp % COL_WARPS != 0) return;
    for (uint32_t value = lane; value < VALUES; value += 32) {
        const uint32_t o = value / LINEAR_ROWS, r = value % LINEAR_ROWS;
        if (o >= outs || r >= rows) continue;
        float all_parts = a.bias ? a.bias[out + o] : 0.0f;
#pragma unroll
        for (int w = 0; w < COL_WARPS; w++) all_parts += parts[warp + w][value];
        a.out[static_cast<size_t>(first + r) * a.outs + out + o] = all_parts;
    }
}
// Many blocks for few rows, and few loads for many.
KERNEL(LINEAR_THREADS, linear_f32_few, LinearF32Args) { linear_f32<1, 8>(a); }
KERNEL(LINEAR_THREADS, linear_f32_many, LinearF32Args) { linear_f32<8, 2>(a); }
#endif
