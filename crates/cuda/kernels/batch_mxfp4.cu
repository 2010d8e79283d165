// Small-batch products of MXFP4.
#ifndef WOOTZ_EMULATE
#include "batch.cuh"

BATCH_SIZES(mxfp4, TileMXFP4)
#endif
