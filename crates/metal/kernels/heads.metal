// What happens to query, key and value heads between projection and attention: norm of each head, rotary embedding,
// write to the cache. K_TYPE and V_TYPE are types of cache.h.
#include "args.h"
#include "cache.h"

FUNCTION_CONSTANT(bool, norm_query, 1);
FUNCTION_CONSTANT(bool, norm_key, 2);
FUNCTION_CONSTANT(bool, has_rotation, 3);
FUNCTION_CONSTANT(bool, adjacent, 4);
// Whether a token has four positions, one of which turns each pair.
FUNCTION_CONSTANT(bool, has_streams, 5);

enum : uint { MAX_HEAD = 576 };

// One simdgroup takes one head of one token: first query heads, then key heads, then value heads. A query head goes
// to y_q; keys and values go to their slots in the cache. Without a part, its number of heads is 0.
//
// Pair i turns by position * turns[i] whole turns, given as a sum of two floats. Only the fraction of a turn counts:
// the product with the larger part is split into a float and its exact remainder.
kernel void heads(constant HeadsArgs& args [[buffer(0)]],
                  device const float* q [[buffer(1)]],
                  device const float* k [[buffer(2)]],
                  device const float* v [[buffer(3)]],
                  device const float* q_weight [[buffer(4)]],
                  device const float* k_weight [[buffer(5)]],
                  device const float2* turns [[buffer(6)]],
                  device const int* positions [[buffer(7)]],
                  device const uint* slots [[buffer(8)]],
                  device float* y_q [[buffer(9)]],
                  device uchar* cache_k [[buffer(10)]],
                  device uchar* cache_v [[buffer(11)]],
                  device const uint* stream_of [[buffer(12)]],
                  uint2 place [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    SHARED(float, head, MAX_HEAD);
    uint token = place.y, index = place.x;
    bool is_query = index < args.q_heads;
    bool is_key = !is_query && index < args.q_heads + args.k_heads;
    uint dim = is_query || is_key ? args.k_dim : args.v_dim;
    if (!is_query) index -= args.q_heads;
    if (!is_query && !is_key) index -= args.k_heads;
    uint heads = is_query ? args.q_heads : is_key ? args.k_heads : args.v_heads;
    ulong first = (ulong(token) * heads + index) * dim;

    float squares = 0.0f;
    for (uint i = lane; i < dim; i += simd_width) {
        float x = is_query ? q[first + i] : is_key ? k[first + i] : v[first + i];
        head[i] = x;
        squares += x * x;
    }
    if ((norm_query && is_query) || (norm_key && is_key)) {
        float inverse = rsqrt(simd_sum(squares) / float(dim) + args.eps);
        for (uint i = lane; i < dim; i += simd_width) head[i] *= inverse * (is_query ? q_weight[i] : k_weight[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (has_rotation && (is_query || is_key)) {
        uint half_dims = args.dims / 2;
        for (uint i = lane; i < half_dims; i += simd_width) {
            float2 turn = turns[i];
            float position = float(positions[has_streams ? 4 * token + stream_of[i] : token]);
            float whole = position * turn.x;
            float rest = fma(position, turn.x, -whole) + position * turn.y;
            float angle = ((whole - rint(whole)) + rest) * 6.283185307f;
            float s = sin(angle) * args.magnitude, c = cos(angle) * args.magnitude;
            uint a = adjacent ? 2 * i : i;
            uint b = adjacent ? 2 * i + 1 : i + half_dims;
            float x = head[a], y = head[b];
            head[a] = x * c - y * s;
            head[b] = x * s + y * c;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (is_query) {
        for (uint i = lane; i < dim; i += simd_width) y_q[first + i] = head[i];
        return;
    }
    uint slot = slots[token];
    uint block = slot / BLOCK_TOKENS, p = slot % BLOCK_TOKENS;
    if (is_key) {
        device uchar* region = cache_k + (ulong(block) * args.k_heads + index) * K_TYPE::region(dim);
        K_TYPE::store<Keys>(region, dim, p, head, lane, simd_width);
    } else {
        device uchar* region = cache_v + (ulong(block) * args.v_heads + index) * V_TYPE::region(dim);
        V_TYPE::store<Values>(region, dim, p, head, lane, simd_width);
    }
}
