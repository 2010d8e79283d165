// Small-batch products of Q6_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q6_k, TileQ6_K)
#endif
