// Products of many rows with experts of MXFP4, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "expert_products.cuh"

EXPERT_HOPPER_SIZES(mxfp4, TileMXFP4)
#endif
