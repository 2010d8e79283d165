// Products of many rows of Q8_0, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "hopper.cuh"

HOPPER_TYPE(q8_0, TileQ8_0)
#endif
