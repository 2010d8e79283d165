// Decoding attention by cache type and head size.
#ifndef WOOTZ_EMULATE
#include "attend.cuh"

ATTEND_DIMS(f16, KV_F16)
ATTEND_DIMS(bf16, KV_BF16)
ATTEND_DIMS(q8_0, KV_Q8_0)
#endif
