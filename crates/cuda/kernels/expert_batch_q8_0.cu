// Small-batch products of experts of Q8_0.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(q8_0, TileQ8_0)
#endif
