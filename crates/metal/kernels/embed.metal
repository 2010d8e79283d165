// Rows of an embedding table of type WEIGHT, times a factor.
#include "args.h"
#include "blocks.h"

// y [rows, cols] from table [vocab, cols]: a thread decodes 16 elements; the host has checked the ids.
kernel void embed(constant EmbedArgs& args [[buffer(0)]],
                  device const uchar* table [[buffer(1)]],
                  device const int* ids [[buffer(2)]],
                  device float* y [[buffer(3)]],
                  uint2 place [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]],
                  uint2 size [[threads_per_threadgroup]]) {
    uint chunk = place.x * size.x + tid;
    uint row = place.y;
    if (16 * chunk >= args.cols) return;
    device const uchar* from = table + ulong(ids[row]) * args.row_bytes;
    device float* to = y + ulong(row) * args.cols + 16 * chunk;
    uint count = min(args.cols - 16 * chunk, uint(16));
    if (WEIGHT::PLAIN) {
        // Rows of any length, at any place.
        for (uint i = 0; i < count; i++) to[i] = args.scale * WEIGHT::at(from, 16 * chunk + i);
    } else {
        float w[16];
        decode16<WEIGHT>(from, chunk, w);
        for (uint i = 0; i < 16; i++) to[i] = args.scale * w[i];
    }
}
