// Small-batch products of BF16.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(bf16, TileBF16)
#endif
