// Many rows by expert: sorting, the 16-bit image of sorted rows, and the weighted sums of results.
#ifndef WOOTZ_EMULATE
#include "acts.cuh"

constexpr int SORT_THREADS = 256, SORTED_THREADS = 256;
// Tiles of 256 columns that a warp keeps; more are read again.
constexpr int SORTED_KEPT = 4;

// A block for each expert. Rows of an expert keep their order, and each expert begins with a group of 8 of its own.
KERNEL(SORT_THREADS, sort_by_expert, SortArgs) {
    __shared__ uint32_t first_place, first_block, found[SORT_THREADS / 32];
    DYNAMIC_SHARED(uint32_t, counts);
    const uint32_t expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto places_of = [&](uint32_t e) { return (counts[e] + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS; };
    auto blocks_of = [&](uint32_t e) { return (counts[e] + a.tokens - 1) / a.tokens; };
    for (uint32_t e = threadIdx.x; e < a.experts; e += SORT_THREADS) counts[e] = 0;
    if (threadIdx.x == 0) first_place = first_block = 0;
    __syncthreads();
    wait_for_last();
    let_next_start();
    const uint32_t slots = *a.rows * a.used;
    for (uint32_t i = threadIdx.x; i < slots; i += SORT_THREADS) atomicAdd(counts + a.ids[i], 1u);
    __syncthreads();
    uint32_t places = 0, blocks = 0;
    for (uint32_t e = threadIdx.x; e < expert; e += SORT_THREADS) places += places_of(e), blocks += blocks_of(e);
    atomicAdd(&first_place, places);
    atomicAdd(&first_block, blocks);
    __syncthreads();
    const uint32_t place = first_place, block = first_block, count = counts[expert];
    uint32_t done = place;
    for (uint32_t from = 0; from < slots && done < place + count; from += SORT_THREADS) {
        const uint32_t i = from + threadIdx.x;
        const bool mine = i < slots && a.ids[i] == static_cast<int32_t>(expert);
        const uint32_t lanes = __ballot_sync(WARP, mine);
        if (lane == 0) found[warp] = __popc(lanes);
        __syncthreads();
        uint32_t before = 0, all = 0;
#pragma unroll
        for (uint32_t w = 0; w < SORT_THREADS / 32; w++) {
            before += w < warp ? found[w] : 0;
            all += found[w];
        }
        if (mine) a.places[i] = done + before + __popc(lanes & ((1u << lane) - 1));
        done += all;
        __syncthreads();
    }
    for (uint32_t b = threadIdx.x; b < blocks_of(expert); b += SORT_THREADS) {
        const uint32_t first = place + b * a.tokens;
        a.list[block + b] = {expert, first, min(first + a.tokens, place + count)};
    }
    if (expert + 1 == a.experts && threadIdx.x == 0) {
        a.counts[0] = block + blocks_of(expert);
        a.counts[1] = place + places_of(expert);
    }
}

// A row a block, a tile a warp at once. Unlike those of a step, rows may be counted by the kernel before.
template <bool BF16> INLINE void pack_sorted(const SortedActsArgs& a) {
    __shared__ float tops[SORTED_THREADS / 32];
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (row >= *a.rows) return;
    const float* x = a.x + static_cast<size_t>(row) * a.cols;
    auto load = [&](uint32_t tile) { return load_chunk(x, a.cols, tile, lane); };
    Chunk kept[SORTED_KEPT];
    float top = 0, factor = 1, scale = 1;
    auto see = [&](const Chunk& c) {
#pragma unroll
        for (int t = 0; t < 4; t++) top = fmaxf(top, largest(c.v[t]));
    };
#pragma unroll
    for (int n = 0; n < SORTED_KEPT; n++) {
        if (warp + n * warps < a.k_tiles) kept[n] = load(warp + n * warps);
    }
    if (!BF16) {
#pragma unroll
        for (int n = 0; n < SORTED_KEPT; n++) {
            if (warp + n * warps < a.k_tiles) see(kept[n]);
        }
        for (uint32_t tile = warp + SORTED_KEPT * warps; tile < a.k_tiles; tile += warps) see(load(tile));
        top = over_warp<Max>(top);
        if (lane == 0) tops[warp] = top;
        __syncthreads();
        for (uint32_t w = 0; w < warps; w++) top = fmaxf(top, tops[w]);
        factor = image_factor(top, scale);
    }
    for (uint32_t n = 0; n < a.copies; n++) {
        const uint32_t place = a.places ? a.places[row * a.copies + n] : row;
        if (!BF16 && threadIdx.x == 0) a.scale[place] = scale;
        auto put = [&](const Chunk& c, uint32_t tile) {
            *reinterpret_cast<uint4*>(a.out + chunk_offset(place, tile, lane, a.groups)) = image_chunk<BF16>(c, factor);
        };
#pragma unroll
        for (int k = 0; k < SORTED_KEPT; k++) {
            if (warp + k * warps < a.k_tiles) put(kept[k], warp + k * warps);
        }
        for (uint32_t tile = warp + SORTED_KEPT * warps; tile < a.k_tiles; tile += warps) put(load(tile), tile);
    }
}
KERNEL(SORTED_THREADS, pack_sorted_f16, SortedActsArgs) { pack_sorted<false>(a); }
KERNEL(SORTED_THREADS, pack_sorted_bf16, SortedActsArgs) { pack_sorted<true>(a); }

KERNEL(256, combine_places, CombinePlacesArgs) {
    wait_for_last();
    let_next_start();
    const uint32_t row = blockIdx.x, vectors = a.cols / 4;
    if (row >= *a.rows) return;
    const uint32_t* places = a.places + static_cast<size_t>(row) * a.used;
    const float* weights = a.weights + static_cast<size_t>(row) * a.used;
    for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (uint32_t s = 0; s < a.used; s++) {
            const float4 y = __ldcg(reinterpret_cast<const float4*>(a.y) + static_cast<size_t>(places[s]) * vectors + i);
            const float w = weights[s];
            sum.x += y.x * w, sum.y += y.y * w, sum.z += y.z * w, sum.w += y.w * w;
        }
        reinterpret_cast<float4*>(a.out)[static_cast<size_t>(row) * vectors + i] = sum;
    }
}
#endif
