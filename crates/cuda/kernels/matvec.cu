// Mat-vec kernels of every type with tiles.
#ifndef WOOTZ_EMULATE
#include "matvec.cuh"

MATVEC_TYPE(, q4_k, TileQ4_K, false)
MATVEC_TYPE(, q5_k, TileQ5_K, false)
MATVEC_TYPE(, q6_k, TileQ6_K, false)
MATVEC_TYPE(, q4_0, TileQ4_0, false)
MATVEC_TYPE(, q4_1, TileQ4_1, false)
MATVEC_TYPE(, mxfp4, TileMXFP4, false)
MATVEC_TYPE(, q8_0, TileQ8_0, false)
MATVEC_TYPE(, f16, TileF16, false)
MATVEC_TYPE(, bf16, TileBF16, false)
// Files mix types: the value matrix has more bits than those of queries and keys.
MATVEC(matvec_q4_k_q6_k, TileQ4_K, TileQ6_K, false, false)
MATVEC(matvec_q5_k_q6_k, TileQ5_K, TileQ6_K, false, false)
#endif
