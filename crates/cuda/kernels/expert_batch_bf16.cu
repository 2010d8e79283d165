// Small-batch products of experts of BF16.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(bf16, TileBF16)
#endif
