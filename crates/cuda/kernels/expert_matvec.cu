// Products of one row with the matrices of the experts chosen for it, of every type with tiles.
#ifndef WOOTZ_EMULATE
#include "matvec.cuh"

MATVEC_TYPE(expert_, q4_k, TileQ4_K, true)
MATVEC_TYPE(expert_, q5_k, TileQ5_K, true)
MATVEC_TYPE(expert_, q6_k, TileQ6_K, true)
MATVEC_TYPE(expert_, q4_0, TileQ4_0, true)
MATVEC_TYPE(expert_, q4_1, TileQ4_1, true)
MATVEC_TYPE(expert_, mxfp4, TileMXFP4, true)
MATVEC_TYPE(expert_, q8_0, TileQ8_0, true)
MATVEC_TYPE(expert_, f16, TileF16, true)
MATVEC_TYPE(expert_, bf16, TileBF16, true)
#endif
