// Attention of prompts by cache type and head size.
#ifndef WOOTZ_EMULATE
#include "flash.cuh"

FLASH_DIMS(f16, KV_F16)
FLASH_DIMS(bf16, KV_BF16)
FLASH_DIMS(q8_0, KV_Q8_0)
#endif
