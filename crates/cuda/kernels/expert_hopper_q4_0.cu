// Products of many rows with experts of Q4_0, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "expert_products.cuh"

EXPERT_HOPPER_SIZES(q4_0, TileQ4_0)
#endif
