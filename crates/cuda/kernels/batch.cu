// Small-batch products of the 4-bit types and Q5_K, Q6_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q4_k, TileQ4_K)
BATCH_SIZES(q5_k, TileQ5_K)
BATCH_SIZES(q6_k, TileQ6_K)
BATCH_SIZES(q4_0, TileQ4_0)
BATCH_SIZES(q4_1, TileQ4_1)
BATCH_SIZES(mxfp4, TileMXFP4)
BATCH_SIZES(q8_0, TileQ8_0)
BATCH_SIZES(f16, TileF16)
BATCH_SIZES(bf16, TileBF16)
#endif
