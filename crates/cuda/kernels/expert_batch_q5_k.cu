// Small-batch products of experts of Q5_K.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(q5_k, TileQ5_K)
#endif
