// Small-batch products of experts of Q4_K.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(q4_k, TileQ4_K)
#endif
