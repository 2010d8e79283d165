// Small-batch products of experts of MXFP4.
#ifndef WOOTZ_EMULATE
#include "expert_products.cuh"

EXPERT_BATCH_SIZES(mxfp4, TileMXFP4)
#endif
