// Small-batch products of experts of Q4_0.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(q4_0, TileQ4_0)
#endif
