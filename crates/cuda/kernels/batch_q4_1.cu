// Small-batch products of Q4_1.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q4_1, TileQ4_1)
#endif
