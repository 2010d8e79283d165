// Rows of an embedding table of type WEIGHT.
#include "args.h"
#include "weights.h"

// The elements `16 * chunk..` of a row of `cols` at `from`; how many there are.
inline uint decode_chunk(device const uchar* from, uint cols, uint chunk, thread float* w) {
    uint count = min(cols - 16 * chunk, uint(16));
    if (WEIGHT::PLAIN) {
        // Rows of any length, at any place.
        for (uint i = 0; i < count; i++) w[i] = WEIGHT::at(from, 16 * chunk + i);
    } else {
        decode16<WEIGHT>(from, chunk, w);
    }
    return count;
}

// y [rows, cols] from table [entries, cols], times a factor: a thread decodes 16 elements; the host has checked the ids,
// of tokens or positions. A negative id -1 - r stands for the token that the step before picked from row r: the second of 4 words that sampling.metal gives.
kernel void embed(constant EmbedArgs& args [[buffer(0)]],
                  device const uchar* table [[buffer(1)]],
                  device const int* ids [[buffer(2)]],
                  device const uint* picked [[buffer(3)]],
                  device float* y [[buffer(4)]],
                  uint2 place [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]],
                  uint2 size [[threads_per_threadgroup]]) {
    uint chunk = place.x * size.x + tid;
    uint row = place.y;
    if (16 * chunk >= args.cols) return;
    int id = ids[row];
    uint token = id < 0 ? picked[4 * uint(-1 - id) + 1] : uint(id);
    device const uchar* from = table + ulong(token) * args.row_bytes;
    device float* to = y + ulong(row) * args.cols + 16 * chunk;
    float w[16];
    uint count = decode_chunk(from, args.cols, chunk, w);
    for (uint i = 0; i < count; i++) to[i] = args.scale * w[i];
}

// y [rows, cols] = x plus one row of the table.
kernel void add_row(constant AddRowArgs& args [[buffer(0)]],
                    device const uchar* table [[buffer(1)]],
                    device const float* x [[buffer(2)]],
                    device float* y [[buffer(3)]],
                    uint2 place [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint2 size [[threads_per_threadgroup]]) {
    uint chunk = place.x * size.x + tid;
    if (16 * chunk >= args.cols) return;
    ulong first = ulong(place.y) * args.cols + 16 * chunk;
    float w[16];
    uint count = decode_chunk(table + ulong(args.row) * args.row_bytes, args.cols, chunk, w);
    for (uint i = 0; i < count; i++) y[first + i] = x[first + i] + w[i];
}
