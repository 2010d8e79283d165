// Attention of single rows: decoding. Reads the cache once for up to 8 query heads that share keys and values.
//
// A block has one row and one group of query heads (grid.y) and a part of the positions (grid.x); its warps take chunks of 16
// positions in turn. With few parts it has as many warps as have registers; or two blocks share a multiprocessor, so that one
// reads while the other begins or ends.
// Keys and values go from memory to registers, in just the order in which tensor cores want them: for scores, lane (g, t)
// loads 8 dimensions of key g; for values it loads dimensions 8g..8g+7 of four positions.
// The mma's left rows 8..15 stay unused. Every warp has its own running maximum; warps, then parts, come together in a
// fixed order, the last block of a row's group to arrive does it. Where the blocks of a group are a cluster, each reads what it
// needs of the others' shared memory and joins a share of the columns: no memory, and nobody comes last.
//
// With `k` and `v` given, a block also normalises and rotates its queries, and the block of the last part does so with the
// key, stores both and takes them from shared memory. Rows must then be of different sequences: so all other positions can
// be read before the kernel waits for the one before it, which made the queries.
#pragma once
#include "acts.cuh"
#include "cache.cuh"
#include "modes.h"
#include "ptx.cuh"

constexpr int ATTEND_HEADS = 8;   // of one block
constexpr int ATTEND_PARTS = 64;  // at most: grid.x
constexpr int CHUNK = 16;         // positions that a warp takes at once
constexpr uint32_t ATTEND_LEAST = 4;  // chunks of a block, unless it is the last
constexpr int ATTEND_CLUSTER = 8; // blocks at most
constexpr uint32_t PARTS_AHEAD = 17;  // parts whose results are loaded at once
constexpr float LOWEST = -1e30f;  // below every score, and finite
constexpr float LOG2_E = 1.4426950408889634f;

// Eight cached elements as they lie in memory, and as 16-bit pairs.
template <uint32_t TYPE> struct Kv {
    static constexpr bool BF16 = TYPE == KV_BF16;
    uint4 raw;
    INLINE void load(const uint8_t* head, int dim, int at, int d) {
        raw = __ldcg(reinterpret_cast<const uint4*>(head + (at * dim + d) * 2));
    }
    // From a position alone, in shared memory.
    INLINE void load_new(const uint8_t* codes, const uint16_t*, int d) {
        raw = *reinterpret_cast<const uint4*>(codes + d * 2);
    }
    INLINE void clear() { raw = make_uint4(0, 0, 0, 0); }
    INLINE uint4 pairs() const { return raw; }
};
template <> struct Kv<KV_Q8_0> {
    static constexpr bool BF16 = false;
    uint2 raw;
    uint32_t scale;
    INLINE void load(const uint8_t* head, int dim, int at, int d) {
        raw = __ldcg(reinterpret_cast<const uint2*>(head + at * dim + d));
        scale = __ldcg(reinterpret_cast<const uint16_t*>(head + BLOCK_TOKENS * dim) + (at * dim + d) / 32);
    }
    INLINE void load_new(const uint8_t* codes, const uint16_t* scales, int d) {
        raw = *reinterpret_cast<const uint2*>(codes + d);
        scale = scales[d / 32];
    }
    INLINE void clear() {
        raw = make_uint2(0, 0);
        scale = 0;
    }
    INLINE uint4 pairs() const {
        const uint32_t high = 0x64646464u, a = raw.x ^ 0x80808080u, b = raw.y ^ 0x80808080u;
        const __half2 offset = as_half2(0x64806480u), s = as_half2(scale * 0x10001u);
        return make_uint4(as_word(__hmul2(__hsub2(as_half2(__byte_perm(a, high, 0x4140)), offset), s)),
                          as_word(__hmul2(__hsub2(as_half2(__byte_perm(a, high, 0x4342)), offset), s)),
                          as_word(__hmul2(__hsub2(as_half2(__byte_perm(b, high, 0x4140)), offset), s)),
                          as_word(__hmul2(__hsub2(as_half2(__byte_perm(b, high, 0x4342)), offset), s)));
    }
};

// c (rows 0..7) += a b; a's rows 8..15 are zeros.
template <bool BF16> INLINE void mma_top(float (&c)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    float all[4] = {c[0], c[1], 0, 0};
    mma<BF16>(all, a0, 0, a2, 0, b0, b1);
    c[0] = all[0];
    c[1] = all[1];
}
// A pair of f32 as 16-bit numbers and, for bf16, what they leave.
template <bool BF16> struct Split {
    uint32_t high, low;
    INLINE Split(float a, float b) {
        high = pack_pair<BF16>(a, b);
        low = BF16 ? pack_pair<BF16>(a - low_bf16(high), b - high_bf16(high)) : 0;
    }
};
template <bool BF16>
INLINE void mma_split(float (&c)[2], const Split<BF16>& a0, const Split<BF16>& a2, uint32_t b0, uint32_t b1) {
    mma_top<BF16>(c, a0.high, a2.high, b0, b1);
    if constexpr (BF16) mma_top<BF16>(c, a0.low, a2.low, b0, b1);
}
INLINE uint32_t word_at(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <uint32_t TYPE, int DIM, int WARPS, bool CLUSTER> struct Attend {
    static constexpr int THREADS = 32 * WARPS;
    static constexpr bool BF16 = Kv<TYPE>::BF16;
    static constexpr int K_LOADS = DIM / 32;  // of one lane and one key
    static constexpr int V_BLOCKS = DIM / 64;
    static constexpr int WIDTH = DIM + 8;  // of a partial result: its values in the order of `place`, maximum, sum
    // Rows are padded so that lanes hit different banks.
    struct Shared {
        float q[ATTEND_HEADS][DIM + 4];
        float fresh[2][DIM];  // the new key and value
        __align__(16) uint8_t codes[2][2 * DIM];  // as stored
        uint16_t scales[2][DIM / 32];
        float top[WARPS][ATTEND_HEADS], sum[WARPS][ATTEND_HEADS];
        __align__(16) float out[WARPS][ATTEND_HEADS][DIM + 8];
        float weight[ATTEND_PARTS][ATTEND_HEADS];
        float all[ATTEND_HEADS];
        float2 part[ATTEND_HEADS];  // maximum and sum of this block
        uint32_t last;
    };

    const AttendArgs& a;
    Shared& s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t row = blockIdx.z;
    uint32_t kv_head, first_head, count;  // query heads of this block
    uint32_t position, from_position;     // seen: from_position..=position
    uint32_t chunk, end;                  // this warp's next chunk, the end of the block's
    uint32_t parts;                       // blocks that have chunks
    const uint32_t* table;

    INLINE Attend(const AttendArgs& args, Shared& shared) : a(args), s(shared) {
        const uint32_t share = a.heads / a.kv_heads, groups = (share + ATTEND_HEADS - 1) / ATTEND_HEADS;
        kv_head = blockIdx.y / groups;
        const uint32_t inside = blockIdx.y % groups * ATTEND_HEADS;
        first_head = kv_head * share + inside;
        count = min(share - inside, static_cast<uint32_t>(ATTEND_HEADS));
        position = a.positions[row];
        from_position = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
        const uint32_t sequence = a.sequences[row];
        table = a.blocks + static_cast<size_t>(sequence) * a.max_blocks - a.first[sequence];
        const uint32_t begin = from_position / CHUNK, stop = position / CHUNK + 1;
        const uint32_t each = max((stop - begin + gridDim.x - 1) / gridDim.x, ATTEND_LEAST);
        parts = (stop - begin + each - 1) / each;
        chunk = begin + blockIdx.x * each + warp;
        end = min(begin + (blockIdx.x + 1) * each, stop);
    }

    // ---- keys and values of a chunk
    Kv<TYPE> k[2][K_LOADS], v[4][V_BLOCKS];
    INLINE const uint8_t* block_of(uint32_t c) const {
        return a.cache + static_cast<size_t>(table[c * CHUNK / BLOCK_TOKENS]) * a.block_bytes;
    }
    static constexpr int HEAD_BYTES = TYPE == KV_Q8_0 ? DIM * 34 : DIM * 64;
    INLINE void load_k(uint32_t c) {
        const uint8_t* head = block_of(c) + kv_head * HEAD_BYTES;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at = c * CHUNK % BLOCK_TOKENS + 8 * j + g;
#pragma unroll
            for (int b = 0; b < K_LOADS; b++) k[j][b].load(head, DIM, at, 32 * b + 8 * t);
        }
    }
    // The chunk's new position comes from shared memory.
    INLINE void put_new(uint32_t c) {
        if (position / CHUNK != c) return;
        const int in_chunk = position % CHUNK;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (8 * j + g != in_chunk) continue;
#pragma unroll
            for (int b = 0; b < K_LOADS; b++) k[j][b].load_new(s.codes[0], s.scales[0], 32 * b + 8 * t);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (2 * t + j % 2 + j / 2 * 8 != in_chunk) continue;
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) v[j][b].load_new(s.codes[1], s.scales[1], 64 * b + 8 * g);
        }
    }
    INLINE void load_v(uint32_t c) {
        const uint8_t* head = block_of(c) + a.v_offset + kv_head * HEAD_BYTES;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int in_chunk = 2 * t + j % 2 + j / 2 * 8, at = c * CHUNK % BLOCK_TOKENS + in_chunk;
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) {
                // Positions not written yet may hold anything, and nothing times anything may be NaN.
                if (c * CHUNK + in_chunk < position || (!a.k && c * CHUNK + in_chunk == position)) v[j][b].load(head, DIM, at, 64 * b + 8 * g);
                else v[j][b].clear();
            }
        }
    }

    // ---- queries, and the new key and value
    // Angles of this lane's pairs, at most; read before the wait, since no kernel close before makes them.
    static constexpr int ANGLES = DIM / 64;
    INLINE void load_angles(float2 (&angles)[ANGLES]) const {
#pragma unroll
        for (int i = 0; i < ANGLES; i++) {
            const uint32_t pair = lane + 32 * i;
            if (a.rope && pair < a.pairs) {
                angles[i] = __ldcg(reinterpret_cast<const float2*>(a.rope) + static_cast<size_t>(row) * a.pairs + pair);
            }
        }
    }
    // This lane's elements of a head, lane, lane + 32, ..., of all summands.
    INLINE void load_head(const float* x, const float* tail, size_t at, float (&e)[DIM / 32]) const {
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) e[i] = __ldcg(x + at + lane + 32 * i);
        constexpr int AHEAD = 768 / DIM;
#pragma unroll 1
        for (uint32_t p = 0; p < a.tails; p += AHEAD) {
            float more[AHEAD][DIM / 32] = {};
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                if (p + n >= a.tails) continue;
#pragma unroll
                for (int i = 0; i < DIM / 32; i++) more[n][i] = __ldcg(tail + (p + n) * a.slab + at + lane + 32 * i);
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
#pragma unroll
                for (int i = 0; i < DIM / 32; i++) e[i] += more[n][i];
            }
        }
    }
    // A head in `to`, normalised and rotated.
    INLINE void make_head(const float* x, const float* tail, size_t at, const float* norm, const float2 (&angles)[ANGLES], float* to) {
        float e[DIM / 32], squares = 0;
        load_head(x, tail, at, e);
        if (norm) {
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) squares += e[i] * e[i];
            const float factor = rsqrtf(over_warp<Sum>(squares) / float(DIM) + a.eps);
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) e[i] *= factor * norm[lane + 32 * i];
        }
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) to[lane + 32 * i] = e[i];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < ANGLES; i++) {
            const uint32_t pair = lane + 32 * i;
            if (!a.rope || pair >= a.pairs) continue;
            const uint32_t one = a.adjacent ? 2 * pair : pair, two = a.adjacent ? 2 * pair + 1 : pair + a.pairs;
            const float x1 = to[one], x2 = to[two];
            to[one] = x1 * angles[i].x - x2 * angles[i].y;
            to[two] = x1 * angles[i].y + x2 * angles[i].x;
        }
        __syncwarp();
    }
    // A warp stores the new key (0) or value (1): f16, bf16, or a scale for each 32 elements, which are one of each lane.
    INLINE void store(int which, uint8_t* head) {
        const uint32_t at = position % BLOCK_TOKENS;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            const int d = lane + 32 * i;
            const float x = s.fresh[which][d];
            if constexpr (TYPE == KV_Q8_0) {
                const float top = over_warp<Max>(fabsf(x)), scale = top / 127.0f;
                const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
                const uint8_t code = static_cast<uint8_t>(static_cast<int>(roundf(x * inverse)));
                head[at * DIM + d] = s.codes[which][d] = code;
                if (lane == 0) {
                    const uint16_t bits = static_cast<uint16_t>(f16_bits(scale));
                    reinterpret_cast<uint16_t*>(head + BLOCK_TOKENS * DIM)[at * (DIM / 32) + i] = bits;
                    s.scales[which][i] = bits;
                }
            } else {
                const uint16_t bits = static_cast<uint16_t>(pack_pair<BF16>(x, 0.0f));
                reinterpret_cast<uint16_t*>(head)[at * DIM + d] = bits;
                reinterpret_cast<uint16_t*>(s.codes[which])[d] = bits;
            }
        }
    }
    INLINE bool stores() const { return a.k && blockIdx.x + 1 == parts; }
    INLINE void prepare(const float2 (&angles)[ANGLES]) {
        const size_t q_row = static_cast<size_t>(row) * a.heads * DIM, o = (static_cast<size_t>(row) * a.kv_heads + kv_head) * DIM;
        // Where no warps are free of heads, two do more.
        if (stores() && warp >= WARPS - 2) {
            const int which = warp - (WARPS - 2);
            uint8_t* head = a.cache + static_cast<size_t>(table[position / BLOCK_TOKENS]) * a.block_bytes +
                            which * a.v_offset + kv_head * HEAD_BYTES;
            if (which == 0) {
                make_head(a.k, a.k_tail, o, a.k_norm, angles, s.fresh[0]);
            } else {
                float e[DIM / 32];
                load_head(a.v, a.v_tail, o, e);
#pragma unroll
                for (int i = 0; i < DIM / 32; i++) s.fresh[1][lane + 32 * i] = e[i];
                __syncwarp();
            }
            store(which, head);
        }
#pragma unroll
        for (int h = warp; h < ATTEND_HEADS; h += WARPS) {
            if (h < static_cast<int>(count)) {
                make_head(a.q, a.q_tail, q_row + (first_head + h) * DIM, a.q_norm, angles, s.q[h]);
            } else {
                for (int d = lane; d < DIM; d += 32) s.q[h][d] = 0;
            }
        }
        __syncthreads();
    }

    INLINE float score(float raw) const {
        const float x = raw * a.scale;
        return (a.softcap > 0 ? a.softcap * tanhf(x / a.softcap) : x) * LOG2_E;
    }

    INLINE void run() {
        if (blockIdx.x >= parts) return;
        float2 angles[ANGLES] = {};
        if (a.k) {
            load_angles(angles);
            if (chunk < end) {
                load_k(chunk);
                load_v(chunk);
            }
        }
        wait_for_last();
        let_next_start();
        if (!a.k) {
            load_angles(angles);
            if (chunk < end) {
                load_k(chunk);
                load_v(chunk);
            }
        }
        prepare(angles);
        float top = LOWEST, sum = 0, out[V_BLOCKS * 8][2] = {};
        for (; chunk < end; chunk += WARPS) {
            if (stores()) put_new(chunk);
            float c[2][2] = {};
#pragma unroll
            for (int b = 0; b < K_LOADS; b++) {
                const float4 x = *reinterpret_cast<const float4*>(&s.q[g][32 * b + 8 * t]);
                const float4 y = *reinterpret_cast<const float4*>(&s.q[g][32 * b + 8 * t + 4]);
                const Split<BF16> q0(x.x, x.y), q1(x.z, x.w), q2(y.x, y.y), q3(y.z, y.w);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint4 p = k[j][b].pairs();
                    mma_split(c[j], q0, q1, p.x, p.y);
                    mma_split(c[j], q2, q3, p.z, p.w);
                }
            }
            const uint32_t next = chunk + WARPS;
            if (next < end) load_k(next);
            float p[4];
            float new_top = top;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t at = chunk * CHUNK + 8 * (i / 2) + 2 * t + i % 2;
                p[i] = at <= position && at >= from_position ? score(c[i / 2][i % 2]) : LOWEST;
                new_top = fmaxf(new_top, p[i]);
            }
            new_top = fmaxf(new_top, __shfl_xor_sync(WARP, new_top, 1));
            new_top = fmaxf(new_top, __shfl_xor_sync(WARP, new_top, 2));
            const float keep = exp2f(top - new_top);
            top = new_top;
            sum *= keep;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] = p[i] > LOWEST ? exp2f(p[i] - top) : 0.0f;
                sum += p[i];
            }
            const Split<BF16> p0(p[0], p[1]), p1(p[2], p[3]);
#pragma unroll
            for (int b = 0; b < V_BLOCKS; b++) {
                const uint4 v0 = v[0][b].pairs(), v1 = v[1][b].pairs(), v2 = v[2][b].pairs(), v3 = v[3][b].pairs();
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    const uint32_t pick = n % 2 ? 0x7632 : 0x5410;
                    float(&o)[2] = out[8 * b + n];
                    o[0] *= keep;
                    o[1] *= keep;
                    mma_split(o, p0, p1, __byte_perm(word_at(v0, n / 2), word_at(v1, n / 2), pick),
                              __byte_perm(word_at(v2, n / 2), word_at(v3, n / 2), pick));
                }
            }
            if (next < end) load_v(next);
        }
        sum += __shfl_xor_sync(WARP, sum, 1);
        sum += __shfl_xor_sync(WARP, sum, 2);
        if (t == 0) {
            s.top[warp][g] = top;
            s.sum[warp][g] = sum;
        }
        // Column c of fragment (b, n) is dimension 64b + 8c + n; it lies at 64b + 8n + c.
#pragma unroll
        for (int i = 0; i < V_BLOCKS * 8; i++) {
            *reinterpret_cast<float2*>(&s.out[warp][g][8 * i + 2 * t]) = make_float2(out[i][0], out[i][1]);
        }
        __syncthreads();
        join();
    }

    // Weights of `n` results of head `h` by their maximums and sums, which `get` reads; s.all has the new sum. A warp does
    // it and gets the maximum.
    template <class Get> INLINE float weigh(uint32_t n, int h, Get get) {
        float top = LOWEST, sum = 0;
        for (uint32_t i = lane; i < n; i += 32) top = fmaxf(top, get(i).x);
        top = over_warp<Max>(top);
        for (uint32_t i = lane; i < n; i += 32) {
            const float2 part = get(i);
            const float weight = exp2f(part.x - top);
            s.weight[i][h] = weight;
            sum += weight * part.y;
        }
        sum = over_warp<Sum>(sum);
        if (lane == 0) s.all[h] = sum;
        return top;
    }
    // The warps' results, and those of other blocks.
    INLINE void join() {
        const size_t group = static_cast<size_t>(row) * gridDim.y + blockIdx.y;
        float* partial = a.partial + group * gridDim.x * ATTEND_HEADS * WIDTH;
        float* mine = partial + blockIdx.x * ATTEND_HEADS * WIDTH;
        for (int h = warp; h < ATTEND_HEADS; h += WARPS) {
            const float top = weigh(WARPS, h, [&](uint32_t i) { return make_float2(s.top[i][h], s.sum[i][h]); });
            if (parts == 1) with_sink(h, top);
            else if (CLUSTER && lane == 0) s.part[h] = make_float2(top, s.all[h]);
            else if (lane == 0) *reinterpret_cast<float2*>(mine + h * WIDTH + DIM) = make_float2(top, s.all[h]);
        }
        __syncthreads();
        constexpr int FOURS = DIM / 4;
        for (int i = threadIdx.x; i < static_cast<int>(count) * FOURS; i += THREADS) {
            const int h = i / FOURS, at = i % FOURS * 4;
            float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int w = 0; w < WARPS; w++) add(value, s.weight[w][h], *reinterpret_cast<float4*>(&s.out[w][h][at]));
            if (parts == 1) put(h, at, value, s.all[h]);
            else if (CLUSTER) *reinterpret_cast<float4*>(&s.out[0][h][at]) = value;
            else __stcg(reinterpret_cast<float4*>(mine + h * WIDTH + at), value);
        }
        if (parts == 1) return;
        if constexpr (CLUSTER) {
            join_cluster();
            return;
        }
        __syncthreads();
        if (threadIdx.x == 0) s.last = arrive_at(a.counters + group) == parts;
        __syncthreads();
        if (!s.last) return;
        if (threadIdx.x == 0) a.counters[group] = 0;
        for (int h = warp; h < ATTEND_HEADS; h += WARPS) {
            const float top = weigh(parts, h, [&](uint32_t i) {
                return __ldcg(reinterpret_cast<const float2*>(partial + (i * ATTEND_HEADS + h) * WIDTH + DIM));
            });
            with_sink(h, top);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < static_cast<int>(count) * FOURS; i += THREADS) {
            const int h = i / FOURS, at = i % FOURS * 4;
            float4 value = make_float4(0, 0, 0, 0);
            // Each time costs the way to the cache.
#pragma unroll 1
            for (uint32_t first = 0; first < parts; first += PARTS_AHEAD) {
                float4 v[PARTS_AHEAD];
#pragma unroll
                for (uint32_t i = 0; i < PARTS_AHEAD; i++) {
                    const uint32_t p = min(first + i, parts - 1);
                    v[i] = __ldcg(reinterpret_cast<const float4*>(partial + (p * ATTEND_HEADS + h) * WIDTH + at));
                }
#pragma unroll
                for (uint32_t i = 0; i < PARTS_AHEAD; i++) {
                    if (first + i < parts) add(value, s.weight[first + i][h], v[i]);
                }
            }
            put(h, at, value, s.all[h]);
        }
    }
    // This block's share of the columns, of the results of all blocks of its cluster.
    INLINE void join_cluster() {
        cluster_barrier();
        constexpr int FOURS = DIM / 4;
        // No more than there are threads, as there are two parts at least.
        static_assert(ATTEND_HEADS * FOURS <= 2 * THREADS, "a thread for each");
        const int all = static_cast<int>(count) * FOURS, each = ((all + parts - 1) / parts + 15) & ~15, i = blockIdx.x * each + threadIdx.x;
        const int h = i / FOURS, at = i % FOURS * 4;
        const bool own = static_cast<int>(threadIdx.x) < each && i < all;
        float2 part[ATTEND_CLUSTER];
        float4 v[ATTEND_CLUSTER];
#pragma unroll
        for (int p = 0; p < ATTEND_CLUSTER; p++) {
            part[p] = make_float2(LOWEST, 0);
            v[p] = make_float4(0, 0, 0, 0);
            if (!own || p >= static_cast<int>(parts)) continue;
            part[p] = load_of_block2(&s.part[h], p);
            v[p] = load_of_block4(&s.out[0][h][at], p);
        }
        cluster_arrive();
        if (own) {
            float top = LOWEST, sum = 0;
            float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int p = 0; p < ATTEND_CLUSTER; p++) top = fmaxf(top, part[p].x);
#pragma unroll
            for (int p = 0; p < ATTEND_CLUSTER; p++) {
                const float weight = exp2f(part[p].x - top);
                sum += weight * part[p].y;
                add(value, weight, v[p]);
            }
            if (a.sinks) sum += exp2f(a.sinks[first_head + h] * LOG2_E - top);
            put(h, at, value, sum);
        }
        // Others may still read this block's memory.
        cluster_wait();
    }
    INLINE static void add(float4& sum, float weight, const float4& v) {
        sum.x += weight * v.x, sum.y += weight * v.y, sum.z += weight * v.z, sum.w += weight * v.w;
    }
    // The sink of head `h` joins the sum.
    INLINE void with_sink(int h, float top) {
        if (!a.sinks || h >= static_cast<int>(count) || lane != 0) return;
        s.all[h] += exp2f(a.sinks[first_head + h] * LOG2_E - top);
    }
    // Four values at their dimensions, divided by the sum of weights.
    INLINE void put(int h, int at, const float4& v, float sum) const {
        const float factor = 1.0f / sum;
        // Threads of 64 dimensions are 16 lanes, of which two begin at the same place of 32 columns and its middle.
        if (a.image && a.image_kind == IMAGE_INT8) {
            const float values[4] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
            const uint32_t column = (first_head + h) * DIM + at / 64 * 64 + at % 8 * 8;
            put_few_strided(values, row, column, at % 64 / 8, 0xffffu << (lane & 16), a.image);
            return;
        }
        if (a.image) {
            const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t column = (first_head + h) * DIM + at / 64 * 64 + 8 * (at % 8 + i) + at % 64 / 8;
                uint8_t* chunk = a.image + chunk_offset(row, column / 256, column % 64 / 2, a.groups);
                const uint32_t bits = a.image_kind == IMAGE_BF16 ? pack_pair<true>(values[i] * factor, 0) : pack_pair<false>(values[i] * factor, 0);
                reinterpret_cast<uint16_t*>(chunk)[column % 256 / 64 * 2 + column % 2] = static_cast<uint16_t>(bits);
            }
            return;
        }
        float* o = a.out + (static_cast<size_t>(row) * a.heads + first_head + h) * DIM + at / 64 * 64 + at % 64 / 8;
        o[8 * (at % 8)] = v.x * factor, o[8 * (at % 8 + 1)] = v.y * factor;
        o[8 * (at % 8 + 2)] = v.z * factor, o[8 * (at % 8 + 3)] = v.w * factor;
    }
};

#define ATTEND_KERNEL(NAME, TYPE, DIM, WARPS, CLUSTER)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, WARPS < 8 ? 2 : 1) NAME(const __grid_constant__ AttendArgs a) { \
        DYNAMIC_SHARED(uint8_t, shared);                                                                               \
        if (blockIdx.z >= *a.tokens) return;                                                                           \
        using Kernel = Attend<TYPE, DIM, WARPS, CLUSTER>;                                                              \
        Kernel(a, *reinterpret_cast<Kernel::Shared*>(shared)).run();                                                   \
    }
#define ATTEND(NAME, TYPE, DIM, WARPS)                             \
    ATTEND_KERNEL(NAME##_short, TYPE, DIM, WARPS, HAS_CLUSTERS)    \
    ATTEND_KERNEL(NAME##_long, TYPE, DIM, 8, false)                \
    ATTEND_KERNEL(NAME##_paired, TYPE, DIM, 4, false)
#define ATTEND_DIMS(NAME, TYPE)                \
    ATTEND(attend_##NAME##_64, TYPE, 64, 12)   \
    ATTEND(attend_##NAME##_128, TYPE, 128, 12) \
    ATTEND(attend_##NAME##_256, TYPE, 256, 8)
