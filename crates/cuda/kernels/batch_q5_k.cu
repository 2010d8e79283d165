// Small-batch products of Q5_K.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(q5_k, TileQ5_K)
// Files mix types: the value matrix has more bits than those of queries and keys.
BATCH(batch_q5_k_q6_k_8, TileQ5_K, TileQ6_K, 1, false)
#endif
