// Products of up to 8 tokens in whole numbers.
#ifndef WOOTZ_EMULATE
#include "few.cuh"

FEW_TYPE(q4_k, TileQ4_K)
FEW_TYPE(q5_k, TileQ5_K)
FEW(few_q6_k, TileQ6_K, FEW_PLAIN)
#endif
