// Products of many rows, for sm_90a.
#ifndef WOOTZ_EMULATE
#include "prefill.cuh"

PREFILL_TYPE(q4_k, TileQ4_K)
PREFILL_TYPE(q5_k, TileQ5_K)
PREFILL_TYPE(q6_k, TileQ6_K)
PREFILL_TYPE(q4_0, TileQ4_0)
PREFILL_TYPE(q4_1, TileQ4_1)
PREFILL_TYPE(mxfp4, TileMXFP4)
PREFILL_TYPE(q8_0, TileQ8_0)
PREFILL_TYPE(f16, TileF16)
PREFILL_TYPE(bf16, TileBF16)
#endif
