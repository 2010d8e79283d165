// Operations that take a recurrent state from token to token.
//
// A block of a cache holds the state after the last computed token of its 32 positions. The tokens of a sequence read the
// state of the position before them and write one for each block that they go through and that the table has.
#include "cache.cuh"

// The tokens of a sequence in a step.
struct Run {
    uint32_t sequence, first, count, position;
};

__device__ inline Run run_of(const StateTables& t, uint32_t sequence) {
    if (sequence >= *t.sequences || t.counts[sequence] == 0) return {sequence, 0, 0, 0};
    const uint32_t first = t.starts[sequence];
    return {sequence, first, t.counts[sequence], uint32_t(t.positions[first])};
}

// Stands in a table for a state that is not kept.
constexpr uint32_t NO_BLOCK = 0xffffffff;

__device__ inline uint32_t block_of(const StateTables& t, const Run& run, uint32_t position) {
    return t.blocks[uint64_t(run.sequence) * t.max_blocks + position / BLOCK_TOKENS - t.first_blocks[run.sequence]];
}

// A thread takes one channel through one sequence, from each state that is kept to the next. The state is the last `width - 1` rows of x, the
// oldest first, so that row `i` of a piece and those before it are rows `i + width - 1` and before of the state with the
// piece after it.
KERNEL(128, short_conv, ShortConvArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, channels = a.channels, kept = a.width - 1;
    const Run run = run_of(a.tables, blockIdx.y);
    if (c >= channels || run.count == 0) return;
    const float* taps = a.weight + uint64_t(c) * a.width;
    const float bias = a.bias ? a.bias[c] : 0.0f;
    const uint64_t state = uint64_t(kept) * channels;
    const float* old = run.position > 0 ? a.states + block_of(a.tables, run, run.position - 1) * state + c : nullptr;
    for (uint32_t done = 0; done < run.count;) {
        const uint32_t position = run.position + done, left = run.count - done;
        uint32_t n = BLOCK_TOKENS - position % BLOCK_TOKENS;
        while (n < left && block_of(a.tables, run, position + n - 1) == NO_BLOCK) n += BLOCK_TOKENS;
        if (n > left) n = left;
        const uint64_t first = run.first + done;
        const float* row = a.x + first * channels + c;
        const auto seen = [&](uint32_t at) {
            if (at >= kept) return row[uint64_t(at - kept) * channels];
            return old ? old[uint64_t(at) * channels] : 0.0f;
        };
        for (uint32_t i = 0; i < n; i++) {
            float sum = bias;
            for (uint32_t j = 0; j <= kept; j++) sum += taps[j] * seen(i + j);
            a.out[(first + i) * channels + c] = sum;
        }
        // In this order a state that is changed where it is gives its rows before they are written.
        float* now = a.states + block_of(a.tables, run, position + n - 1) * state + c;
        for (uint32_t j = 0; j < kept; j++) now[uint64_t(j) * channels] = seen(n + j);
        old = now;
        done += n;
    }
}

// Most states of a thread.
constexpr uint32_t MOST_STATES = 8;

// `lanes` threads, a power of two, take one channel through one sequence, each some of its states; a channel's states lie
// side by side.
KERNEL(128, scan, ScanArgs) {
    wait_for_last();
    let_next_start();
    const Run run = run_of(a.tables, blockIdx.y);
    if (run.count == 0) return;
    const uint32_t channels = a.heads * a.head_dim, thread = blockIdx.x * blockDim.x + threadIdx.x;
    // Threads beyond the last channel take part in its sums and write nothing.
    const bool writes = thread / a.lanes < channels;
    const uint32_t channel = writes ? thread / a.lanes : channels - 1, lane = thread % a.lanes;
    const uint32_t head = channel / a.head_dim, group = head / (a.heads / a.groups) * a.state;
    const uint64_t own = uint64_t(channel) * a.state, block = uint64_t(channels) * a.state;

    float state[MOST_STATES], rate[MOST_STATES];
    const float* old = a.states + (run.position > 0 ? block_of(a.tables, run, run.position - 1) * block : 0) + own;
    for (uint32_t i = 0; i < MOST_STATES; i++) {
        const uint32_t n = lane + i * a.lanes;
        const bool is_state = n < a.state;
        rate[i] = is_state ? a.a[uint64_t(head) * a.rates + (a.rates > 1 ? n : 0)] : 0.0f;
        state[i] = is_state && run.position > 0 ? old[n] : 0.0f;
    }
    const float direct = a.d[head];
    for (uint32_t t = 0; t < run.count; t++) {
        const uint64_t token = run.first + t;
        const float dt = a.dt[token * a.heads + head], input = a.x[token * channels + channel];
        const float delta = fmaxf(dt, 0.0f) + log1pf(expf(-fabsf(dt)));
        const float* b = a.bc + token * 2 * a.groups * a.state + group;
        const float* c = b + a.groups * a.state;
        float decay = expf(delta * rate[0]), sum = 0.0f;
        for (uint32_t i = 0; i < MOST_STATES; i++) {
            const uint32_t n = lane + i * a.lanes;
            if (n >= a.state) continue;
            if (a.rates > 1) decay = expf(delta * rate[i]);
            state[i] = state[i] * decay + delta * b[n] * input;
            sum += state[i] * c[n];
        }
        for (uint32_t mask = a.lanes / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        if (!writes) continue;
        if (lane == 0) a.out[token * channels + channel] = sum + direct * input;
        if (t + 1 < run.count && (run.position + t + 1) % BLOCK_TOKENS != 0) continue;
        const uint32_t kept = block_of(a.tables, run, run.position + t);
        if (kept == NO_BLOCK) continue;
        float* now = a.states + kept * block + own;
        for (uint32_t i = 0; i < MOST_STATES; i++) {
            const uint32_t n = lane + i * a.lanes;
            if (n < a.state) now[n] = state[i];
        }
    }
}

// Each row becomes that of the token before; the state is the last row. A thread takes one channel through one sequence.
KERNEL(128, shift, ShiftArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, channels = a.channels;
    const Run run = run_of(a.tables, blockIdx.y);
    if (c >= channels || run.count == 0) return;
    float last = run.position > 0 ? a.states[uint64_t(block_of(a.tables, run, run.position - 1)) * channels + c] : 0.0f;
    for (uint32_t t = 0; t < run.count; t++) {
        const uint64_t at = uint64_t(run.first + t) * channels + c;
        const float now = a.x[at];
        a.out[at] = last;
        last = now;
        const bool is_end = t + 1 == run.count || (run.position + t + 1) % BLOCK_TOKENS == 0;
        if (!is_end) continue;
        const uint32_t kept = block_of(a.tables, run, run.position + t);
        if (kept != NO_BLOCK) a.states[uint64_t(kept) * channels + c] = last;
    }
}

// Elements of a head at most.
constexpr uint32_t MOST_HEAD = 128;

// A block takes one head through one sequence, a thread each column of its state: element j of what is read. Threads
// beyond the last column keep to the barriers. A state is [heads, head_dim, head_dim].
KERNEL(128, wkv, WkvArgs) {
    wait_for_last();
    let_next_start();
    // Of a token: what is read with, keys, decays; and what is removed and where, or what it reads of itself.
    __shared__ float reads[MOST_HEAD], keys[MOST_HEAD], decays[MOST_HEAD], taken[MOST_HEAD], given[MOST_HEAD];
    const Run run = run_of(a.tables, blockIdx.y);
    const uint32_t head = blockIdx.x, j = threadIdx.x, n = a.head_dim;
    const bool works = j < n, is_seventh = a.first == nullptr;
    const uint64_t block = uint64_t(a.heads) * n * n, own = uint64_t(head) * n * n + j;

    float state[MOST_HEAD];
    const bool known = works && run.count > 0 && run.position > 0;
    const float* from = known ? a.states + block_of(a.tables, run, run.position - 1) * block + own : nullptr;
    for (uint32_t i = 0; i < n; i++) state[i] = known ? from[i * n] : 0.0f;
    for (uint32_t t = 0; t < run.count; t++) {
        const uint64_t at = (uint64_t(run.first + t) * a.heads + head) * n + j;
        // The last token has been read.
        __syncthreads();
        if (works) {
            reads[j] = a.r[at];
            keys[j] = a.k[at];
            decays[j] = is_seventh ? expf(-0.60653066f / (1.0f + expf(-a.d[at]))) : expf(-expf(a.d[at]));
            taken[j] = is_seventh ? a.a[at] : a.first[head * n + j] * a.k[at];
            given[j] = is_seventh ? a.b[at] : 0.0f;
        }
        __syncthreads();
        if (!works) continue;
        const float value = a.v[at];
        float sum = 0.0f, removed = 0.0f;
        if (is_seventh) {
            for (uint32_t i = 0; i < n; i++) removed += taken[i] * state[i];
        }
        for (uint32_t i = 0; i < n; i++) {
            const float next = state[i] * decays[i] + keys[i] * value + given[i] * removed;
            sum += reads[i] * (is_seventh ? next : state[i] + taken[i] * value);
            state[i] = next;
        }
        a.out[at] = sum;
        const bool is_end = t + 1 == run.count || (run.position + t + 1) % BLOCK_TOKENS == 0;
        if (!is_end) continue;
        const uint32_t kept = block_of(a.tables, run, run.position + t);
        if (kept == NO_BLOCK) continue;
        float* to = a.states + kept * block + own;
        for (uint32_t i = 0; i < n; i++) to[i * n] = state[i];
    }
}
