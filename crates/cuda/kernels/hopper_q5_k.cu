// Products of many rows of Q5_K, for sm_90a alone.
#if !defined(WOOTZ_EMULATE) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))
#include "hopper.cuh"

HOPPER_TYPE(q5_k, TileQ5_K)
// Files mix types: the value matrix has more bits than those of queries and keys.
HOPPER_SIZES(hopper_q5_k_q6_k, TileQ5_K, TileQ6_K, false)
#endif
