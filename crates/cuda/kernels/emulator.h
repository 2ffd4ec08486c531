// A CUDA block on one CPU thread, for tests: the words the kernels use, and fibers where they wait for each other.

#pragma once
#define HETAL_EMULATOR
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)

struct Dim3 {
    unsigned x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline double __longlong_as_double(long long x) {
    double d;
    std::memcpy(&d, &x, 8);
    return d;
}
static inline long long __double_as_longlong(double x) {
    long long i;
    std::memcpy(&i, &x, 8);
    return i;
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
template <class T>
static inline T __ldg(const T* p) {
    return *p;
}

// Threads of a block take turns; each runs to its next barrier.
static ucontext_t scheduler;
static ucontext_t* current;
static void wait_for_block() { swapcontext(current, &scheduler); }
static inline void __syncthreads() { wait_for_block(); }
static inline void __syncwarp() { wait_for_block(); }

struct Entry {
    const char* name;
    void (*run)(const void*);
    unsigned threads;
    bool waits;
};
static std::vector<Entry>& entries() {
    static std::vector<Entry> all;
    return all;
}
struct Registration {
    Registration(const char* name, void (*run)(const void*), unsigned threads, bool waits) {
        entries().push_back({name, run, threads, waits});
    }
};

#define EMULATED_KERNEL(name, threads, Args, waits)                                        \
    static void name(const Args& a);                                                       \
    static void name##_entry(const void* p) { name(*(const Args*)p); }                     \
    static Registration name##_registration(#name, name##_entry, (threads), waits);        \
    static void name(const Args& a)
#define KERNEL(name, threads, blocks, Args) EMULATED_KERNEL(name, threads, Args, false)
#define SYNC_KERNEL(name, threads, blocks, Args) EMULATED_KERNEL(name, threads, Args, true)

static const Entry* running;
static const void* running_args;
static void fiber() { running->run(running_args); }

// In a different order every block, so that a missing barrier shows.
static void run_block_of_fibers(unsigned threads) {
    static const size_t STACK = 1 << 16;
    static std::vector<char> stacks(STACK * 1024);
    static std::vector<ucontext_t> fibers(1024);
    std::vector<bool> done(threads, false);
    for (unsigned t = 0; t < threads; t++) {
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = &stacks[t * STACK];
        fibers[t].uc_stack.ss_size = STACK;
        fibers[t].uc_link = nullptr;
    }
    static volatile unsigned turn;
    static void (*body)() = [] {
        fiber();
        threadIdx.y = 1;  // finished
        swapcontext(current, &scheduler);
    };
    for (unsigned t = 0; t < threads; t++) makecontext(&fibers[t], body, 0);
    const unsigned start = blockIdx.x * 7 + blockIdx.y * 3;
    for (unsigned finished = 0; finished < threads;) {
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = (start + (blockIdx.x & 1 ? threads - 1 - k : k)) % threads;
            if (done[t]) continue;
            turn = t;
            threadIdx = {t, 0, 0};
            current = &fibers[t];
            swapcontext(&scheduler, current);
            if (threadIdx.y == 1) {
                done[turn] = true;
                finished++;
            }
        }
    }
}

// 0, or 1 for an unknown kernel, or 2 for a block of the wrong size.
extern "C" int hetal_launch(
    const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned threads, const void* args) {
    for (const Entry& e : entries()) {
        if (std::strcmp(e.name, name)) continue;
        if (e.threads != threads) return 2;
        running = &e;
        running_args = args;
        gridDim = {gx, gy, gz};
        blockDim = {threads, 1, 1};
        for (unsigned z = 0; z < gz; z++)
            for (unsigned y = 0; y < gy; y++)
                for (unsigned x = 0; x < gx; x++) {
                    blockIdx = {x, y, z};
                    if (e.waits) {
                        run_block_of_fibers(threads);
                    } else {
                        for (unsigned t = 0; t < threads; t++) {
                            threadIdx = {t, 0, 0};
                            e.run(args);
                        }
                    }
                }
        return 0;
    }
    return 1;
}
