// The inputs of a step, from memory of the host.
#include "common.cuh"

// Words that a thread has on their way at once.
constexpr uint32_t WORDS = 4;

// A kernel and not a copy of the driver: its reading takes place while the step before ends, and changing from one to the
// other takes longer than a step's small inputs.
KERNEL(256, take_inputs, InputsArgs) {
    const uint32_t threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    // No other kernel writes these; the host may have since the device read the place last.
    const volatile uint64_t* from = a.from;
    uint64_t words[WORDS];
    auto load = [&](uint32_t at) {
        for (uint32_t i = 0; i < WORDS; i++) words[i] = at + i * threads < a.words ? from[at + i * threads] : 0;
    };
    load(first);
    wait_for_last();
    for (uint32_t at = first; at < a.words; at += WORDS * threads) {
        for (uint32_t i = 0; i < WORDS; i++) {
            if (at + i * threads < a.words) a.to[at + i * threads] = words[i];
        }
        load(at + WORDS * threads);
    }
}
