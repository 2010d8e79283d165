// Runs kernels on the processor: what CUDA C++ has beyond C++, for the host's compiler.
//
// The threads of a block are fibers, run one after the other by the thread that launches; blocks run one after the
// other. Barriers and shuffles are meeting points: a fiber goes on when all threads of its block, or of its warp, have
// come. A meeting that some can no longer come to is reported, with the kernel left unfinished. Memory that is not
// initialised on a device is not initialised here. Only what the kernels use is here.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline

namespace emulator {

struct Index {
    uint32_t x, y, z;
};

inline Index grid, block, block_index;

constexpr size_t STACK = 64 << 10;
constexpr uint32_t MOST_THREADS = 1024, WARP = 32;

enum State { READY, AT_WARP, AT_BLOCK, ENDED };

// The thread of a block. Fibers are made once and serve every launch.
struct Fiber {
    Index index;
    State state;
    bool started;
    // Which of the two sets of slots the next shuffle uses.
    bool second;
    jmp_buf at;
    ucontext_t first;
};

inline std::vector<Fiber*> fibers;
inline Fiber* current;
inline jmp_buf scheduler;
inline std::function<void()> body;
// Values that lanes hand to each other. Two sets, so that one meeting a shuffle is enough.
inline uint64_t slots[2][MOST_THREADS];
inline std::vector<uint64_t> dynamic_memory;

inline void* dynamic_shared() { return dynamic_memory.data(); }

inline void leave(State state) {
    current->state = state;
    if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}

inline void life() {
    for (;;) {
        body();
        leave(ENDED);
    }
}

inline void make_fibers(uint32_t n) {
    while (fibers.size() < n) {
        Fiber* fiber = new Fiber();
        getcontext(&fiber->first);
        fiber->first.uc_stack.ss_sp = malloc(STACK);
        fiber->first.uc_stack.ss_size = STACK;
        fiber->first.uc_link = nullptr;
        makecontext(&fiber->first, life, 0);
        fiber->index = Index{uint32_t(fibers.size()), 0, 0};
        fibers.push_back(fiber);
    }
}

// Runs a fiber until it leaves.
inline void resume(Fiber* fiber) {
    current = fiber;
    if (_setjmp(scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->at, 1);
    fiber->started = true;
    setcontext(&fiber->first);
}

// Whether all fibers of a range that have not ended wait in `state`; then they go on.
inline bool meet(uint32_t from, uint32_t to, State state) {
    bool any = false;
    for (uint32_t i = from; i < to; i++) {
        if (fibers[i]->state == state) any = true;
        // A thread that has ended comes to barriers of the block, but to no shuffle.
        else if (fibers[i]->state != ENDED || state == AT_WARP) return false;
    }
    for (uint32_t i = from; any && i < to; i++) {
        if (fibers[i]->state == state) fibers[i]->state = READY;
    }
    return any;
}

inline const char* run_block() {
    const uint32_t n = block.x;
    for (uint32_t i = 0; i < n; i++) fibers[i]->state = READY;
    for (;;) {
        bool ran = false, live = false;
        for (uint32_t warp = 0; warp < n; warp += WARP) {
            const uint32_t end = warp + WARP < n ? warp + WARP : n;
            do {
                for (uint32_t i = warp; i < end; i++) {
                    if (fibers[i]->state != READY) continue;
                    resume(fibers[i]);
                    ran = true;
                }
            } while (meet(warp, end, AT_WARP));
        }
        for (uint32_t i = 0; i < n; i++) live = live || fibers[i]->state != ENDED;
        if (!live) return nullptr;
        if (!meet(0, n, AT_BLOCK) && !ran) {
            // They wait for ever: leave them where they are, and begin with new ones next time.
            fibers.clear();
            return "threads wait at different barriers or shuffles";
        }
    }
}

// `shape` is the grid, the threads of a block and the bytes of dynamic shared memory.
inline const char* launch(const uint32_t* shape, const std::function<void()>& kernel) {
    grid = Index{shape[0], shape[1], shape[2]};
    block = Index{shape[3], 1, 1};
    if (block.x == 0 || block.x > MOST_THREADS) return "a block has no such number of threads";
    dynamic_memory.assign(shape[4] / 8 + 1, ~uint64_t(0));
    make_fibers(block.x);
    body = kernel;
    for (uint32_t z = 0; z < grid.z; z++) {
        for (uint32_t y = 0; y < grid.y; y++) {
            for (uint32_t x = 0; x < grid.x; x++) {
                block_index = Index{x, y, z};
                if (const char* error = run_block()) return error;
            }
        }
    }
    return nullptr;
}

template <class T> T of_lane(T value, uint32_t lane) {
    static_assert(sizeof(T) <= 8, "a shuffle hands over a word or two");
    const uint32_t own = current->index.x, first = own / WARP * WARP;
    uint64_t* set = slots[current->second];
    current->second = !current->second;
    memcpy(&set[own], &value, sizeof(T));
    leave(AT_WARP);
    T other;
    memcpy(&other, &set[first + lane % WARP], sizeof(T));
    return other;
}

template <class T, class B> T bits(B from) {
    static_assert(sizeof(T) == sizeof(B), "as many bits");
    T to;
    memcpy(&to, &from, sizeof(T));
    return to;
}

inline float half_value(uint32_t half) {
    const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 31) return bits<float>(sign | 0x7f800000 | fraction << 13);
    const float magnitude = exponent == 0 ? ldexpf(float(fraction), -24)
                                          : ldexpf(float(fraction | 0x400), int(exponent) - 25);
    return bits<float>(sign | bits<uint32_t>(magnitude));
}

// Nearest, ties to even.
inline uint32_t half_bits(float value) {
    const uint32_t all = bits<uint32_t>(value), sign = all >> 16 & 0x8000, magnitude = all & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    const float x = bits<float>(magnitude);
    // Below the least normal number, units are all alike.
    if (x < ldexpf(1.0f, -14)) return sign | uint32_t(nearbyintf(ldexpf(x, 24)));
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    if (rounded >= 0x47800000) return sign | 0x7c00;
    return sign | (rounded - 0x38000000) >> 13;
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx emulator::block_index
#define blockDim emulator::block
#define gridDim emulator::grid

inline void __syncthreads() { emulator::leave(emulator::AT_BLOCK); }
inline void __syncwarp(uint32_t = 0xffffffffu) { emulator::leave(emulator::AT_WARP); }
template <class T> T __shfl_xor_sync(uint32_t, T value, int lanes) {
    return emulator::of_lane(value, (emulator::current->index.x % emulator::WARP) ^ uint32_t(lanes));
}
template <class T> T __shfl_sync(uint32_t, T value, int lane) { return emulator::of_lane(value, uint32_t(lane)); }
template <class F> uint32_t __reduce(uint32_t value, F join) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    return value;
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
    return __reduce(value, [](uint32_t x, uint32_t y) { return x > y ? x : y; });
}
inline uint32_t __reduce_min_sync(uint32_t, uint32_t value) {
    return __reduce(value, [](uint32_t x, uint32_t y) { return x < y ? x : y; });
}

inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = float(sin(M_PI * double(x)));
    *cosine = float(cos(M_PI * double(x)));
}
