// What every kernel shares: how it is declared, how it waits for the one before it, sums over a block.
//
// A kernel is `KERNEL(threads, name, Args) { ... }`: an extern "C" function whose only parameter is the struct `a` from
// args.h. `threads` bounds the block size. The same source is compiled by the host's C++ compiler with
// WOOTZ_EMULATE, see emulator/cuda.h.
#pragma once
#include <stdint.h>

#ifdef WOOTZ_EMULATE
#include "cuda.h"
#endif
#include "args.h"

#ifdef WOOTZ_EMULATE
#define KERNEL(THREADS, NAME, ARGS)                                                      \
    static void NAME(const ARGS& a);                                                     \
    extern "C" const char* emulate_##NAME(const void* args, const uint32_t* shape) {     \
        return emulator::launch(shape, [=] { NAME(*static_cast<const ARGS*>(args)); });  \
    }                                                                                    \
    static void NAME(const ARGS& a)
#define DYNAMIC_SHARED(T, NAME) T* NAME = static_cast<T*>(emulator::dynamic_shared())
#else
#define KERNEL(THREADS, NAME, ARGS) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ ARGS a)
#define DYNAMIC_SHARED(T, NAME)                             \
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[]; \
    T* NAME = reinterpret_cast<T*>(dynamic_shared_memory)
#endif

// Kernels of a program overlap: the next one may start before the last has ended. Every thread calls this before it
// touches memory that another kernel writes or reads; weights alone may be read earlier.
__device__ __forceinline__ void wait_for_last() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as every block has come here or ended; it still waits where it must.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What a thread wrote is seen by all kernels that start when its block has ended, before they wait too.
__device__ __forceinline__ void show_written() {
#if defined(__CUDA_ARCH__)
    __threadfence();
#endif
}

#ifdef WOOTZ_EMULATE
__device__ inline float f32_of_bits(uint32_t bits) { return emulator::bits<float>(bits); }
__device__ inline uint32_t bits_of_f32(float value) { return emulator::bits<uint32_t>(value); }
__device__ inline float f16_value(uint32_t bits) { return emulator::half_value(bits); }
__device__ inline uint32_t f16_bits(float value) { return emulator::half_bits(value); }
#else
__device__ __forceinline__ float f32_of_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t bits_of_f32(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float f16_value(uint32_t bits) {
    float value;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
    return value;
}
// Nearest, ties to even.
__device__ __forceinline__ uint32_t f16_bits(float value) {
    uint32_t bits;
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(bits) : "f"(value));
    return bits;
}
#endif
__device__ __forceinline__ float bf16_value(uint32_t bits) { return f32_of_bits(bits << 16); }

struct Sum {
    __device__ static float none() { return 0.0f; }
    __device__ static float join(float x, float y) { return x + y; }
};
struct Max {
    __device__ static float none() { return -INFINITY; }
    __device__ static float join(float x, float y) { return fmaxf(x, y); }
};

// The join of a value of each lane of a warp, in every lane.
template <class Op> __device__ __forceinline__ float over_warp(float value) {
    for (int step = 16; step > 0; step /= 2) {
        value = Op::join(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    return value;
}

// The join of a value of each thread of a block of whole warps, in every thread, in a fixed order.
template <class Op> __device__ inline float over_block(float value) {
    __shared__ float parts[32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = over_warp<Op>(value);
    // The parts of a call before this one have been read by all.
    __syncthreads();
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    return over_warp<Op>(lane < warps ? parts[lane] : Op::none());
}
