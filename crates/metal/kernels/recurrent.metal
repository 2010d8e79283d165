// Operations that take a recurrent state from token to token. STATE is the number of states of a channel of the scan,
// LANES that of the threads that share them: a power of two up to 32. HEAD is the number of elements of a head of RWKV.
//
// A block of a cache holds the state after the last computed token of its 32 positions. A run of tokens reads the state
// of the position before it and writes one for each block that it goes through and that the table has.
#include "args.h"
#include "cache.h"

FUNCTION_CONSTANT(bool, has_bias, 1);

// Stands in a table for a state that is not kept.
enum : uint { NO_BLOCK = 0xffffffff };

// ln(1 + exp(x)), precise also where it is small: ln(1 + u) = 2 artanh(u / (2 + u)), by the series of artanh.
inline float softplus(float x) {
    float u = exp(-fabs(x));
    float s = u / (2.0f + u);
    float z = s * s;
    float p = 1.0f / 15.0f;
    p = p * z + 1.0f / 13.0f;
    p = p * z + 1.0f / 11.0f;
    p = p * z + 1.0f / 9.0f;
    p = p * z + 1.0f / 7.0f;
    p = p * z + 0.2f;
    p = p * z + 1.0f / 3.0f;
    return max(x, 0.0f) + 2.0f * (s + s * z * p);
}

// The block of a position of the sequence that a span belongs to.
inline uint block_of(device const TokenSpan* span, device const uint* blocks, uint position) {
    return blocks[span->table + position / BLOCK_TOKENS - span->first];
}

// A thread takes one channel through one run, from each state that is kept to the next. The state is the last `width - 1` rows of x, the oldest
// first, so that row `i` of a piece and those before it are rows `i + width - 1` and before of the state with the piece
// after it.
kernel void short_conv(constant ShortConvArgs& args [[buffer(0)]],
                       device const float* x [[buffer(1)]],
                       device const float* weight [[buffer(2)]],
                       device const float* bias [[buffer(3)]],
                       device const TokenTile* runs [[buffer(4)]],
                       device const TokenSpan* spans [[buffer(5)]],
                       device const uint* blocks [[buffer(6)]],
                       device float* states [[buffer(7)]],
                       device float* y [[buffer(8)]],
                       uint2 place [[thread_position_in_grid]]) {
    uint c = place.x, channels = args.channels, kept = args.width - 1;
    if (c >= channels) return;
    uint first = runs[place.y].first, count = runs[place.y].count;
    device const TokenSpan* span = spans + first;
    uint position = span->position;
    bool known = position > 0;
    uint before = known ? block_of(span, blocks, position - 1) : 0;
    device const float* taps = weight + (args.first + c) * args.width;
    while (count > 0) {
        uint n = min(BLOCK_TOKENS - position % BLOCK_TOKENS, count);
        while (n < count && block_of(span, blocks, position + n - 1) == NO_BLOCK) n = min(n + BLOCK_TOKENS, count);
        uint next = block_of(span, blocks, position + n - 1);
        device const float* old = states + ulong(before) * kept * channels + c;
        device const float* row = x + ulong(first) * channels + c;
        for (uint i = 0; i < n; i++) {
            float sum = has_bias ? bias[args.first + c] : 0.0f;
            for (uint j = 0; j <= kept; j++) {
                uint at = i + j;
                float value = at >= kept ? row[ulong(at - kept) * channels] : known ? old[at * channels] : 0.0f;
                sum = fma(taps[j], value, sum);
            }
            y[ulong(first + i) * channels + c] = sum;
        }
        // In this order a state that is changed where it is gives its rows before they are written.
        device float* now = states + ulong(next) * kept * channels + c;
        for (uint j = 0; j < kept; j++) {
            uint at = n + j;
            now[j * channels] = at >= kept ? row[ulong(at - kept) * channels] : known ? old[at * channels] : 0.0f;
        }
        known = true;
        before = next;
        first += n;
        position += n;
        count -= n;
    }
}

#ifdef STATE
enum : uint { STATES_OF_LANE = (STATE + LANES - 1) / LANES };

// LANES threads take one channel through one run, each some of its states; a channel's states lie side by side.
kernel void scan(constant ScanArgs& args [[buffer(0)]],
                 device const float* x [[buffer(1)]],
                 device const float* dt [[buffer(2)]],
                 device const float* bc [[buffer(3)]],
                 device const float* a [[buffer(4)]],
                 device const float* d [[buffer(5)]],
                 device const TokenTile* runs [[buffer(6)]],
                 device const TokenSpan* spans [[buffer(7)]],
                 device const uint* blocks [[buffer(8)]],
                 device float* states [[buffer(9)]],
                 device float* y [[buffer(10)]],
                 uint2 place [[thread_position_in_grid]]) {
    uint channels = args.heads * args.head_dim;
    // Threads beyond the last channel take part in its sums and write nothing.
    bool writes = place.x / LANES < channels;
    uint channel = writes ? place.x / LANES : channels - 1, lane = place.x % LANES;
    uint head = channel / args.head_dim;
    uint group = head / (args.heads / args.groups) * STATE, c_first = args.groups * STATE;
    uint first = runs[place.y].first, count = runs[place.y].count;
    device const TokenSpan* span = spans + first;
    uint position = span->position;
    ulong own = ulong(channel) * STATE;

    float state[STATES_OF_LANE], rate[STATES_OF_LANE];
    for (uint i = 0; i < STATES_OF_LANE; i++) {
        uint n = lane + i * LANES;
        state[i] = 0.0f;
        rate[i] = 0.0f;
        if (n >= STATE) continue;
        rate[i] = a[head * args.rates + (args.rates > 1 ? n : 0)];
        if (position > 0) {
            ulong block = block_of(span, blocks, position - 1);
            state[i] = states[block * channels * STATE + own + n];
        }
    }
    for (uint t = 0; t < count; t++) {
        ulong token = first + t;
        float delta = softplus(dt[token * args.heads + head]);
        float input = x[token * channels + channel];
        float decay = exp(delta * rate[0]);
        device const float* b = bc + token * 2 * c_first + group;
        float sum = 0.0f;
        for (uint i = 0; i < STATES_OF_LANE; i++) {
            uint n = lane + i * LANES;
            if (n >= STATE) continue;
            if (args.rates > 1) decay = exp(delta * rate[i]);
            state[i] = state[i] * decay + delta * b[n] * input;
            sum += state[i] * b[c_first + n];
        }
        for (uint mask = LANES / 2; mask > 0; mask /= 2) sum += simd_shuffle_xor(sum, ushort(mask));
        if (writes && lane == 0) y[token * channels + channel] = sum + d[head] * input;
        bool is_end = t + 1 == count || (position + t + 1) % BLOCK_TOKENS == 0;
        if (!writes || !is_end) continue;
        uint kept = block_of(span, blocks, position + t);
        if (kept == NO_BLOCK) continue;
        ulong block = kept;
        for (uint i = 0; i < STATES_OF_LANE; i++) {
            uint n = lane + i * LANES;
            if (n < STATE) states[block * channels * STATE + own + n] = state[i];
        }
    }
}
#endif

// Each row becomes that of the token before; the state is the last row. A thread takes one channel through one run.
kernel void shift(constant ShiftArgs& args [[buffer(0)]],
                  device const float* x [[buffer(1)]],
                  device const TokenTile* runs [[buffer(2)]],
                  device const TokenSpan* spans [[buffer(3)]],
                  device const uint* blocks [[buffer(4)]],
                  device float* states [[buffer(5)]],
                  device float* y [[buffer(6)]],
                  uint2 place [[thread_position_in_grid]]) {
    uint c = place.x, channels = args.channels;
    if (c >= channels) return;
    uint first = runs[place.y].first, count = runs[place.y].count;
    device const TokenSpan* span = spans + first;
    uint position = span->position;
    float last = position > 0 ? states[ulong(block_of(span, blocks, position - 1)) * channels + c] : 0.0f;
    for (uint t = 0; t < count; t++) {
        ulong at = ulong(first + t) * channels + c;
        float now = x[at];
        y[at] = last;
        last = now;
        bool is_end = t + 1 == count || (position + t + 1) % BLOCK_TOKENS == 0;
        if (!is_end) continue;
        uint kept = block_of(span, blocks, position + t);
        if (kept != NO_BLOCK) states[ulong(kept) * channels + c] = last;
    }
}

#ifdef HEAD
// RWKV 7 in place of RWKV 6.
FUNCTION_CONSTANT(bool, is_seventh, 2);

// A threadgroup of WIDE threads takes one head through one run, a thread each column of its state: element j of what
// is read. A state is [heads, HEAD, HEAD].
kernel void wkv(constant WkvArgs& args [[buffer(0)]],
                device const float* r [[buffer(1)]],
                device const float* k [[buffer(2)]],
                device const float* v [[buffer(3)]],
                device const float* d [[buffer(4)]],
                device const float* a [[buffer(5)]],
                device const float* b [[buffer(6)]],
                device const float* factors [[buffer(7)]],
                device const TokenTile* runs [[buffer(8)]],
                device const TokenSpan* spans [[buffer(9)]],
                device const uint* blocks [[buffer(10)]],
                device float* states [[buffer(11)]],
                device float* y [[buffer(12)]],
                uint2 place [[threadgroup_position_in_grid]],
                uint own_place [[thread_index_in_threadgroup]]) {
    // Of a token: what is read with, keys, decays; and what is removed and where, or what it reads of itself.
    SHARED(float, reads, WIDE);
    SHARED(float, keys, WIDE);
    SHARED(float, decays, WIDE);
    SHARED(float, taken, WIDE);
    SHARED(float, given, WIDE);
    uint head = place.x, first = runs[place.y].first, count = runs[place.y].count;
    device const TokenSpan* span = spans + first;
    uint position = span->position;
    // Threads beyond the last column do its work over, in places nobody reads, and write nothing out: all threads
    // come to the barriers by the same way.
    bool works = own_place < uint(HEAD);
    uint j = min(own_place, uint(HEAD) - 1);
    ulong block = ulong(args.heads) * HEAD * HEAD, own = ulong(head) * HEAD * HEAD + j;

    float state[HEAD];
    for (uint i = 0; i < HEAD; i++) state[i] = 0.0f;
    if (position > 0) {
        device const float* from = states + block_of(span, blocks, position - 1) * block + own;
        for (uint i = 0; i < HEAD; i++) state[i] = from[i * HEAD];
    }
    for (uint t = 0; t < count; t++) {
        ulong at = (ulong(first + t) * args.heads + head) * HEAD + j;
        // The last token has been read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        reads[own_place] = r[at];
        keys[own_place] = k[at];
        decays[own_place] = is_seventh ? exp(-0.60653066f / (1.0f + exp(-d[at]))) : exp(-exp(d[at]));
        taken[own_place] = is_seventh ? a[at] : factors[head * HEAD + j] * k[at];
        given[own_place] = is_seventh ? b[at] : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float value = v[at], sum = 0.0f;
        if (is_seventh) {
            float removed = 0.0f;
            for (uint i = 0; i < HEAD; i++) removed += taken[i] * state[i];
            for (uint i = 0; i < HEAD; i++) {
                state[i] = state[i] * decays[i] + keys[i] * value + given[i] * removed;
                sum += reads[i] * state[i];
            }
        } else {
            for (uint i = 0; i < HEAD; i++) {
                sum += reads[i] * (state[i] + taken[i] * value);
                state[i] = state[i] * decays[i] + keys[i] * value;
            }
        }
        if (works) y[at] = sum;
        bool is_end = t + 1 == count || (position + t + 1) % BLOCK_TOKENS == 0;
        uint kept = works && is_end ? block_of(span, blocks, position + t) : uint(NO_BLOCK);
        if (kept != NO_BLOCK) {
            device float* to = states + kept * block + own;
            for (uint i = 0; i < HEAD; i++) to[i * HEAD] = state[i];
        }
    }
}
#endif
