// Products of tokens sorted by expert: the kernels of many rows, with a list of who has which tokens.
#pragma once
#include "batch.cuh"
#include "hopper.cuh"

#define EXPERT_BATCH(NAME, T, NT, TOKENS)                                               \
    BATCH_OF(expert_batch_##NAME##_##TOKENS, T, T, NT, false, ExpertTokens)             \
    BATCH_OF(expert_batch_glu_##NAME##_##TOKENS, T, T, NT, true, ExpertTokens)
#define EXPERT_BATCH_SIZES(NAME, T) \
    EXPERT_BATCH(NAME, T, 1, 8)     \
    EXPERT_BATCH(NAME, T, 4, 32)    \
    EXPERT_BATCH(NAME, T, 8, 64)
#define EXPERT_HOPPER(NAME, T, N)                                                       \
    HOPPER_OF(expert_hopper_##NAME##_##N, T, T, N, false, ExpertTokens)                 \
    HOPPER_OF(expert_hopper_glu_##NAME##_##N, T, T, N, true, ExpertTokens)
#define EXPERT_HOPPER_SIZES(NAME, T) \
    EXPERT_HOPPER(NAME, T, 32)       \
    EXPERT_HOPPER(NAME, T, 64)       \
    EXPERT_HOPPER(NAME, T, 128)
