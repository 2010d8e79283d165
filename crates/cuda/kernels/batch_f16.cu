// Small-batch products of F16.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(f16, TileF16)
#endif
