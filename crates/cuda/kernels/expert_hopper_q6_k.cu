// Products of many rows with experts of Q6_K, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "expert_products.cuh"

EXPERT_HOPPER_SIZES(q6_k, TileQ6_K)
#endif
