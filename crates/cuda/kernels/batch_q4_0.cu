// Small-batch products of Q4_0.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q4_0, TileQ4_0)
#endif
