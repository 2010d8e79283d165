// Small-batch products of Q8_0.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q8_0, TileQ8_0)
#endif
