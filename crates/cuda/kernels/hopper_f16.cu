// Products of many rows of F16, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "hopper.cuh"

HOPPER_TYPE(f16, TileF16)
#endif
