// Small-batch products of Q4_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q4_k, TileQ4_K)
#endif
