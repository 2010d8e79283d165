// Picks a token from each row of logits, as crates/graph/src/sampling.rs defines it: every operation rounds in one way.
//
// A candidate is a number: its logit in the high half, so coded that numbers compare as logits do, and in the low half its
// token, so coded that of equal logits the lower token is the greater number. 0 is none. A logit that is not a number or
// infinite is greater than all candidates. Blocks of `slice` tokens each find the greatest, then one block a row finds the
// greatest of those.
#include "common.cuh"

constexpr uint32_t PICK_THREADS = 512;
// Candidates of a row at most.
constexpr uint32_t MOST_KEPT = 128;

// What becomes of a row, in the order of graph::Picked.
enum { PICKED_TOKEN, PICKED_BAD_LOGIT, PICKED_NONE };

__device__ inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
// What stands in the high half of a bad logit.
constexpr uint32_t BAD = 0xffffffffu;
__device__ inline uint64_t in_order(uint32_t order, uint32_t token) { return uint64_t(order) << 32 | (0xffffffffu - token); }
__device__ inline uint64_t candidate(float x, uint32_t token) {
    // 0 and -0 are equal.
    const uint32_t bits = x == 0.0f ? 0 : bits_of(x);
    return in_order(bits >> 31 ? ~bits : bits | 0x80000000u, token);
}
// -infinity is none.
__device__ inline bool is_bad(float x) { return !(x < INFINITY); }
__device__ inline uint64_t number_of(float x, uint32_t token) {
    return is_bad(x) ? in_order(BAD, token) : isinf(x) ? 0 : candidate(x, token);
}
__device__ inline uint32_t token_of(uint64_t candidate) { return 0xffffffffu - uint32_t(candidate); }
__device__ inline float logit_of(uint64_t candidate) {
    const uint32_t order = uint32_t(candidate >> 32);
    return f32_of_bits(order >> 31 ? order & 0x7fffffffu : ~order);
}

// The greatest number of a block's threads, in every thread.
__device__ inline uint64_t greatest(uint64_t value) {
    __shared__ uint64_t parts[32];
    const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    auto over_lanes = [](uint64_t v) {
        for (int step = 16; step > 0; step /= 2) {
            const uint64_t other = __shfl_xor_sync(0xffffffffu, v, step);
            v = other > v ? other : v;
        }
        return v;
    };
    value = over_lanes(value);
    __syncthreads();
    if (lane == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    return over_lanes(lane < warps ? parts[lane] : 0);
}

// Sorts `n` numbers, a power of two, the greatest first.
__device__ inline void sort_down(uint64_t* keys, uint32_t n) {
    for (uint32_t size = 2; size <= n; size *= 2) {
        for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x) {
                const uint32_t low = 2 * i - i % stride;
                const uint64_t x = keys[low], y = keys[low + stride];
                if ((x < y) == ((low & size) == 0)) keys[low] = y, keys[low + stride] = x;
            }
        }
    }
    __syncthreads();
}

__device__ inline float bounded(float x) { return fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f); }

// A block a row, a thread an edit.
KERNEL(256, edit_logits, PickArgs) {
    wait_for_last();
    let_next_start();
    const PickRow& row = a.rows[blockIdx.x];
    float* logits = a.logits + uint64_t(blockIdx.x) * a.cols;
    for (uint32_t i = threadIdx.x; i < row.edits; i += blockDim.x) {
        const PickEdit edit = a.edits[row.first_edit + i];
        if (edit.token >= a.cols || !isfinite(logits[edit.token])) continue;
        float x = bounded(logits[edit.token] + edit.bias);
        if (edit.seen > 0) {
            const float repeated = x <= 0.0f ? __fmul_rn(x, row.repeat) : x / row.repeat;
            const float taken = __fadd_rn(__fmul_rn(float(edit.seen), row.frequency), row.presence);
            x = bounded(repeated - taken);
        }
        logits[edit.token] = edit.bias == -INFINITY ? -INFINITY : x;
    }
}

// Logits that a thread has on their way at once.
constexpr uint32_t PICK_AHEAD = 4;

// Blocks: slices of the tokens, rows. A row that keeps one candidate needs no shared memory.
KERNEL(PICK_THREADS, pick_parts, PickArgs) {
    wait_for_last();
    let_next_start();
    DYNAMIC_SHARED(uint64_t, keys);
    const uint32_t kept = a.rows[blockIdx.y].top_k, first = blockIdx.x * a.slice;
    const float* logits = a.logits + uint64_t(blockIdx.y) * a.cols;
    uint64_t best = 0;
    float top = -INFINITY;
    uint32_t top_token = 0;
    for (uint32_t begin = threadIdx.x; begin < a.slice; begin += PICK_AHEAD * blockDim.x) {
        float x[PICK_AHEAD];
        for (uint32_t n = 0; n < PICK_AHEAD; n++) {
            const uint32_t i = begin + n * blockDim.x;
            x[n] = i < a.slice && first + i < a.cols ? logits[first + i] : -INFINITY;
        }
        for (uint32_t n = 0; n < PICK_AHEAD; n++) {
            const uint32_t i = begin + n * blockDim.x, token = first + i;
            if (kept > 1) {
                if (i < a.slice) keys[i] = number_of(x[n], token);
            } else if (is_bad(x[n])) {
                const uint64_t number = in_order(BAD, token);
                best = number > best ? number : best;
            } else if (x[n] > top) {
                // The first of equals, as tokens come in order.
                top = x[n], top_token = token;
            }
        }
    }
    uint64_t* out = a.parts + (uint64_t(blockIdx.y) * gridDim.x + blockIdx.x) * a.kept;
    if (kept == 1) {
        if (best == 0 && top > -INFINITY) best = candidate(top, top_token);
        best = greatest(best);
        if (threadIdx.x == 0) out[0] = best;
        return;
    }
    sort_down(keys, a.slice);
    for (uint32_t i = threadIdx.x; i < kept; i += blockDim.x) out[i] = i < a.slice ? keys[i] : 0;
}

// As `exp_neg` there.
__device__ inline float exp_neg(float x) {
    const float lowest = -87.0f, round = 12582912.0f;
    const float clamped = x > lowest ? x : lowest;
    const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), round);
    const float n = shifted - round;
    const float r = __fadd_rn(__fadd_rn(clamped, -__fmul_rn(n, 355.0f / 512.0f)), -__fmul_rn(n, -2.1219444e-4f));
    float p = __fadd_rn(1.0f / 720.0f, __fmul_rn(r, 1.0f / 5040.0f));
    p = __fadd_rn(1.0f / 120.0f, __fmul_rn(r, p));
    p = __fadd_rn(1.0f / 24.0f, __fmul_rn(r, p));
    p = __fadd_rn(1.0f / 6.0f, __fmul_rn(r, p));
    p = __fadd_rn(0.5f, __fmul_rn(r, p));
    p = __fadd_rn(1.0f, __fadd_rn(r, __fmul_rn(__fmul_rn(r, r), p)));
    const float scaled = f32_of_bits(bits_of(p) + (bits_of(shifted) << 23));
    return x > lowest ? scaled : 0.0f;
}

// The sum of at most 128 weights: 16 lanes in f32, then all in f64.
__device__ inline double sum_of(const float* weights, uint32_t n) {
    const uint32_t whole = n / 16 * 16;
    double sum = 0.0;
    for (uint32_t lane = 0; lane < 16; lane++) {
        float part = 0.0f;
        for (uint32_t i = lane; i < whole; i += 16) part += weights[i];
        sum += double(part);
    }
    for (uint32_t i = whole; i < n; i++) sum += double(weights[i]);
    return sum;
}

// A block a row.
KERNEL(PICK_THREADS, pick_row, PickArgs) {
    wait_for_last();
    let_next_start();
    DYNAMIC_SHARED(uint64_t, keys);
    __shared__ float values[MOST_KEPT], weights[MOST_KEPT];
    __shared__ uint32_t left;
    const PickRow& row = a.rows[blockIdx.x];
    const uint32_t kept = row.top_k;
    const uint64_t first = uint64_t(blockIdx.x) * a.slices;
    uint64_t best = 0;
    // `merged`: the power of two that all candidates of all slices fit.
    for (uint32_t i = threadIdx.x; i < a.merged; i += blockDim.x) {
        const uint32_t slice = i / kept;
        const uint64_t key = slice < a.slices ? a.parts[(first + slice) * a.kept + i % kept] : 0;
        best = key > best ? key : best;
        keys[i] = key;
    }
    best = greatest(best);
    uint32_t* out = a.picked + 3 * blockIdx.x;
    auto end = [&](uint32_t what, uint32_t token, float value) {
        if (threadIdx.x != 0) return;
        out[0] = what, out[1] = token, out[2] = bits_of(value);
        a.tokens[blockIdx.x] = what == PICKED_TOKEN ? int32_t(token) : 0;
    };
    if (best >> 32 == BAD) {
        const uint32_t token = token_of(best);
        return end(PICKED_BAD_LOGIT, token, a.logits[uint64_t(blockIdx.x) * a.cols + token]);
    }
    if (best == 0) return end(PICKED_NONE, 0, 0.0f);
    if (kept == 1) return end(PICKED_TOKEN, token_of(best), 0.0f);
    sort_down(keys, a.merged);
    const float top = logit_of(best);
    if (threadIdx.x < kept && keys[threadIdx.x] != 0) {
        values[threadIdx.x] = logit_of(keys[threadIdx.x]);
        weights[threadIdx.x] = exp_neg(values[threadIdx.x] - top);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t n = 0;
        while (n < kept && keys[n] != 0) n++;
        if (row.top_p < 1.0f) {
            const double needed = __dmul_rn(double(row.top_p), sum_of(weights, n));
            double held = 0.0;
            for (uint32_t i = 0; i < n; i++) {
                held += double(weights[i]);
                if (held >= needed) n = i + 1;
            }
        }
        uint32_t likely = 0;
        while (likely < n && values[likely] >= top + row.min_p_below) likely++;
        left = isfinite(top / row.temperature) ? likely : likely < 1 ? likely : 1;
    }
    __syncthreads();
    if (threadIdx.x < left) {
        auto warmed = [&](float x) { return fmaxf(x / row.temperature, -3.402823466e38f); };
        weights[threadIdx.x] = exp_neg(warmed(values[threadIdx.x]) - warmed(top));
    }
    __syncthreads();
    uint32_t last = 0;
    if (threadIdx.x == 0) {
        double target = __dmul_rn(row.uniform, sum_of(weights, left));
        for (uint32_t i = 0; i < left; i++) {
            if (weights[i] <= 0.0f) continue;
            last = i;
            target -= double(weights[i]);
            if (target < 0.0) break;
        }
    }
    end(PICKED_TOKEN, token_of(keys[last]), 0.0f);
}
