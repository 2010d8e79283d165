// Small-batch products of Q5_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q5_k, TileQ5_K)
#endif
