// Small-batch products of experts of Q6_K.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(q6_k, TileQ6_K)
#endif
