// Small-batch products of Q4_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q4_k, TileQ4_K)
// Files mix types: the value matrix has more bits than those of queries and keys.
BATCH(batch_q4_k_q6_k_8, TileQ4_K, TileQ6_K, 1, false)
#endif
