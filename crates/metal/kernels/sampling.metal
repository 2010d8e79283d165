// Picks a token from each row of logits. The definition is that of crates/graph/src/sampling.rs, to the last bit: a
// product and a sum must not become one operation.
#include "args.h"
#include "common.h"
#include "float64.h"

#pragma METAL fp contract(off)
#pragma STDC FP_CONTRACT OFF

// Whether candidates come from the step before and not from the logits.
FUNCTION_CONSTANT(bool, from_keys, 1);

// Logits that a threadgroup looks at to find the best one; candidates that one sorts.
enum : uint { REACH = 4096, SORTED = 1024, MAX_KEPT = 256 };

// What a pick gives: as in exec/pick.rs.
enum : uint { PICKED = 0, BAD_LOGIT = 1, NO_CANDIDATE = 2, RESULT_WORDS = 4 };

#define LOWEST (-3.40282347e38f)
#define HIGHEST 3.40282347e38f

// A number that is higher for a better candidate. 0 is none; a logit that is no number or infinite comes before all.
inline ulong key_of(float logit, uint token) {
    uint bits = as_type<uint>(logit);
    uint size = bits & 0x7fffffff;
    if (bits == 0xff800000) return 0;
    if (size >= 0x7f800000) return ulong(0xffffffff) << 32 | ulong(~token);
    // 0 and -0 are equal. Negative numbers have all bits turned over, others the sign.
    if (size == 0) bits = 0;
    uint turned = bits >> 31 != 0 ? ~bits : bits | 0x80000000;
    return ulong(turned) << 32 | ulong(~token);
}

inline float logit_of(ulong key) {
    uint turned = uint(key >> 32);
    return as_type<float>(turned >> 31 != 0 ? turned & 0x7fffffff : ~turned);
}

inline float bounded(float x) {
    return x < LOWEST ? LOWEST : x > HIGHEST ? HIGHEST : x;
}

// Changes single logits [rows, vocab] of a row: biases, bans, penalties.
kernel void edit_logits(constant PickArgs& args [[buffer(0)]],
                        device const PickEdit* edits [[buffer(1)]],
                        device const PickRow* rows [[buffer(2)]],
                        device float* logits [[buffer(3)]],
                        uint place [[thread_position_in_grid]]) {
    if (place >= args.edits) return;
    device const PickEdit* edit = edits + place;
    device float* at = logits + ulong(edit->row) * args.vocab + edit->token;
    float x = *at;
    if ((as_type<uint>(x) & 0x7f800000) == 0x7f800000) return;
    if (as_type<uint>(edit->bias) == 0xff800000) {
        *at = edit->bias;
        return;
    }
    x = bounded(x + edit->bias);
    if (edit->seen > 0) {
        device const PickRow* row = rows + edit->row;
        float repeated = x <= 0.0f ? x * row->repeat_penalty : x / row->repeat_penalty;
        float taken = float(edit->seen) * row->frequency_penalty;
        x = bounded(repeated - (taken + row->presence_penalty));
    }
    *at = x;
}

inline ulong better(ulong a, ulong b) {
    return a > b ? a : b;
}

// The best of REACH logits: logits [rows, vocab] to keys [rows, chunks]. Grid: [chunks, rows].
kernel void best_of_chunk(constant PickArgs& args [[buffer(0)]],
                          device const float* logits [[buffer(1)]],
                          device ulong* keys [[buffer(2)]],
                          uint2 place [[threadgroup_position_in_grid]],
                          uint tid [[thread_index_in_threadgroup]],
                          uint2 size [[threads_per_threadgroup]]) {
    SHARED(ulong, best, 256);
    device const float* row = logits + ulong(place.y) * args.vocab;
    uint end = min(args.vocab, (place.x + 1) * REACH);
    ulong own = 0;
    for (uint i = place.x * REACH + tid; i < end; i += size.x) own = better(own, key_of(row[i], i));
    best[tid] = own;
    for (uint half_size = size.x / 2; half_size > 0; half_size /= 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tid < half_size) best[tid] = better(best[tid], best[tid + half_size]);
    }
    if (tid == 0) keys[ulong(place.y) * args.kept + place.x] = best[0];
}

// Sorts `count` keys, a power of two, the best first.
inline void sort(threadgroup ulong* keys, uint count, uint tid, uint threads) {
    for (uint run = 2; run <= count; run *= 2) {
        for (uint stride = run / 2; stride > 0; stride /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = tid; i < count / 2; i += threads) {
                uint a = 2 * stride * (i / stride) + i % stride;
                uint b = a + stride;
                ulong first = keys[a], second = keys[b];
                if ((first < second) == ((a & run) == 0)) {
                    keys[a] = second;
                    keys[b] = first;
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The best `kept` of SORTED candidates: of logits or of keys, [rows, count], to keys
// [rows, chunks * kept]. Grid: [chunks, rows].
kernel void best_of_sorted(constant PickArgs& args [[buffer(0)]],
                           device const float* logits [[buffer(1)]],
                           device const ulong* keys [[buffer(2)]],
                           device ulong* to [[buffer(3)]],
                           uint2 place [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]],
                           uint2 size [[threads_per_threadgroup]]) {
    SHARED(ulong, sorted, SORTED);
    ulong first = ulong(place.y) * args.count;
    for (uint i = tid; i < SORTED; i += size.x) {
        uint at = place.x * SORTED + i;
        ulong key = 0;
        if (at < args.count) key = from_keys ? keys[first + at] : key_of(logits[first + at], at);
        sorted[i] = key;
    }
    sort(sorted, SORTED, tid, size.x);
    uint chunks = (args.count + SORTED - 1) / SORTED;
    device ulong* row = to + (ulong(place.y) * chunks + place.x) * args.kept;
    for (uint i = tid; i < args.kept; i += size.x) row[i] = sorted[i];
}

// e^x for x at most 0, as the host computes it.
inline float exp_below(float x) {
    float clamped = x > -87.0f ? x : -87.0f;
    float shifted = clamped * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = clamped - n * 0.693359375f - n * -2.1219444e-4f;
    float tail = 1.0f / 6.0f + r * (1.0f / 24.0f + r * (1.0f / 120.0f + r * (1.0f / 720.0f + r * (1.0f / 5040.0f))));
    float p = 1.0f + (r + r * r * (0.5f + r * tail));
    float scaled = as_type<float>(as_type<uint>(p) + (as_type<uint>(shifted) << 23));
    return x > -87.0f ? scaled : 0.0f;
}

// Sum of weights as f64, in the host's order: of 128 in turn, 16 lanes first.
inline ulong sum_of(threadgroup const float* weights, uint count) {
    ulong total = 0;
    for (uint first = 0; first < count; first += 128) {
        uint end = min(count, first + 128);
        uint grouped = first + (end - first) / 16 * 16;
        ulong sum = 0;
        for (uint lane = 0; lane < 16; lane++) {
            float own = 0.0f;
            for (uint i = first + lane; i < grouped; i += 16) own += weights[i];
            sum = f64_add(sum, f64_of(own));
        }
        for (uint i = grouped; i < end; i++) sum = f64_add(sum, f64_of(weights[i]));
        total = f64_add(total, sum);
    }
    return total;
}

// Picks a token of each row from its `count` candidates. Grid: [rows].
kernel void draw(constant PickArgs& args [[buffer(0)]],
                 device const ulong* keys [[buffer(1)]],
                 device const PickRow* rows [[buffer(2)]],
                 device const float* logits [[buffer(3)]],
                 device uint* picked [[buffer(4)]],
                 uint place [[threadgroup_position_in_grid]],
                 uint tid [[thread_index_in_threadgroup]],
                 uint2 size [[threads_per_threadgroup]]) {
    SHARED(ulong, sorted, SORTED);
    SHARED(float, weights, MAX_KEPT);
    SHARED(float, scaled, MAX_KEPT);
    uint padded = 2;
    while (padded < args.count) padded *= 2;
    for (uint i = tid; i < padded; i += size.x) {
        sorted[i] = i < args.count ? keys[ulong(place) * args.count + i] : 0;
    }
    sort(sorted, padded, tid, size.x);
    device uint* result = picked + ulong(place) * RESULT_WORDS;
    ulong top = sorted[0];
    uint token = ~uint(top);
    if (top == 0 || top >> 32 == 0xffffffff) {
        if (tid == 0) {
            result[0] = top == 0 ? NO_CANDIDATE : BAD_LOGIT;
            // The next step may read it as its input, whatever becomes of it.
            result[1] = top == 0 ? 0 : token;
            result[2] = top == 0 ? 0 : as_type<uint>(logits[ulong(place) * args.vocab + token]);
        }
        return;
    }
    device const PickRow* row = rows + place;
    float best = logit_of(top);
    float best_scaled = best / row->temperature;
    bool one = (as_type<uint>(best_scaled) & 0x7f800000) == 0x7f800000;
    uint count = one ? 1 : min(row->top_k, min(padded, uint(MAX_KEPT)));
    best_scaled = best_scaled > LOWEST ? best_scaled : LOWEST;
    for (uint i = tid; i < count; i += size.x) {
        float x = logit_of(sorted[i]);
        float y = x / row->temperature;
        weights[i] = exp_below(x - best);
        scaled[i] = exp_below((y > LOWEST ? y : LOWEST) - best_scaled);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid != 0) return;
    while (sorted[count - 1] == 0) count--;
    if (count > 1) {
        ulong top_p = f64_from_halves(row->top_p_low, row->top_p_high);
        if (top_p < F64_ONE) {
            ulong needed = f64_multiply(top_p, sum_of(weights, count));
            ulong held = 0;
            uint reached = 0;
            while (reached < count) {
                held = f64_add(held, f64_of(weights[reached]));
                reached++;
                if (held >= needed) break;
            }
            count = reached;
        }
        float limit = best + row->min_p_below;
        while (count > 1 && logit_of(sorted[count - 1]) < limit) count--;
        ulong target = f64_multiply(f64_from_halves(row->uniform_low, row->uniform_high), sum_of(scaled, count));
        uint last = 0;
        for (uint i = 0; i < count; i++) {
            ulong weight = f64_of(scaled[i]);
            if (weight == 0) continue;
            last = i;
            if (target < weight) break;
            target = f64_subtract(target, weight);
        }
        token = ~uint(sorted[last]);
    }
    result[0] = PICKED;
    result[1] = token;
    result[2] = 0;
}
