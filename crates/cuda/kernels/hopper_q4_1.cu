// Products of many rows of Q4_1, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "hopper.cuh"

HOPPER_TYPE(q4_1, TileQ4_1)
#endif
