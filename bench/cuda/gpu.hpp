// What the kernel benchmark needs of the CUDA runtime: compiled kernels by name, buffers, launches, timed graphs.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define CHECK(x)                                                                                      \
    do {                                                                                              \
        cudaError_t error_ = (x);                                                                     \
        if (error_ != cudaSuccess) {                                                                  \
            printf("CUDA: %s (%s) at %s:%d\n", cudaGetErrorString(error_), #x, __FILE__, __LINE__);   \
            fflush(stdout);                                                                           \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

// Memory on the device, freed with its owner; filled with bytes that are NaN as any float.
template <class T> struct Buffer {
    T* p = nullptr;
    size_t n = 0;
    Buffer() = default;
    explicit Buffer(size_t count) : n(count) {
        CHECK(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)));
        poison();
    }
    explicit Buffer(const std::vector<T>& v) : Buffer(v.size()) {
        CHECK(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    Buffer(Buffer&& o) noexcept : p(o.p), n(o.n) { o.p = nullptr; }
    Buffer& operator=(Buffer&& o) noexcept {
        std::swap(p, o.p);
        std::swap(n, o.n);
        return *this;
    }
    ~Buffer() { cudaFree(p); }
    void poison() { CHECK(cudaMemset(p, 0xff, n * sizeof(T))); }
    void zero() { CHECK(cudaMemset(p, 0, n * sizeof(T))); }
    std::vector<T> read() const {
        std::vector<T> v(n);
        CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

struct Gpu {
    cudaStream_t stream;
    int sms;
    std::string folder;
    std::map<std::string, cudaLibrary_t> libraries;
    std::map<std::string, cudaKernel_t> kernels;

    explicit Gpu(std::string code) : folder(std::move(code)) {
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    }
    // Whether FILE.cubin has a kernel: one may build a part of them.
    bool has(const std::string& file, const std::string& name) { return find(file, name) != nullptr; }
    // A kernel of FILE.cubin, allowed as much shared memory as the device has.
    cudaKernel_t kernel(const std::string& file, const std::string& name) {
        const cudaKernel_t kernel = find(file, name);
        if (!kernel) {
            printf("no kernel %s in %s\n", name.c_str(), file.c_str());
            exit(1);
        }
        return kernel;
    }
    cudaKernel_t find(const std::string& file, const std::string& name) {
        auto known = kernels.find(name);
        if (known != kernels.end()) return known->second;
        if (!libraries.count(file)) {
            cudaLibrary_t library;
            const std::string path = folder + "/" + file + ".cubin";
            if (cudaLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) != cudaSuccess) {
                cudaGetLastError();
                return nullptr;
            }
            libraries[file] = library;
        }
        cudaKernel_t kernel;
        if (cudaLibraryGetKernel(&kernel, libraries[file], name.c_str()) != cudaSuccess) {
            cudaGetLastError();
            return nullptr;
        }
        cudaFuncAttributes attributes;
        CHECK(cudaFuncGetAttributes(&attributes, kernel));
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   227 * 1024 - static_cast<int>(attributes.sharedSizeBytes)));
        return kernels[name] = kernel;
    }
    // With `overlap` the kernel may start before the one ahead has ended; `cluster` blocks along x are a cluster.
    template <class Args>
    void launch(cudaKernel_t kernel, dim3 grid, int threads, size_t shared, const Args& args, bool overlap = true, uint32_t cluster = 1) {
        cudaLaunchConfig_t config{};
        config.gridDim = grid;
        config.blockDim = threads;
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        cudaLaunchAttribute attributes[2]{};
        uint32_t count = 0;
        if (overlap) {
            attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[count++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (cluster > 1) {
            attributes[count].id = cudaLaunchAttributeClusterDimension;
            attributes[count++].val.clusterDim = {cluster, 1, 1};
        }
        config.attrs = attributes;
        config.numAttrs = count;
        void* list[] = {const_cast<Args*>(&args)};
        CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), list));
    }
    void sync() {
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaGetLastError());
    }
    // Median microseconds of a graph of what `record` launches.
    template <class F> double time(F record, int repeats = 15, int warm = 3) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        record();
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        cudaEvent_t from, to;
        CHECK(cudaEventCreate(&from));
        CHECK(cudaEventCreate(&to));
        std::vector<float> times;
        for (int i = 0; i < repeats + warm; i++) {
            CHECK(cudaEventRecord(from, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaEventRecord(to, stream));
            CHECK(cudaEventSynchronize(to));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, from, to));
            if (i >= warm) times.push_back(ms * 1000);
        }
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaEventDestroy(from));
        CHECK(cudaEventDestroy(to));
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
};
