// Arithmetic modulo a prime q < 2^51. The bounds of that in doubles are proved in
// crates/ring/src/simd.rs and the files that use it; the operations and their order here are the
// same. Sources are compiled with --fmad=false: a product is fused with a sum only where __fma_rn
// says so.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define N (1u << LOG_N)

// Every kernel takes one struct by value. An emulator (emulator.h) gives these words another
// meaning.
#ifndef HETAL_EMULATOR
// A kernel may be brought to the multiprocessors when the blocks of the one before it have ended,
// and waits here until what they wrote can be seen. (Bringing it earlier was slower: its waiting
// blocks crowd some multiprocessors.)
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define DECLARE_KERNEL(name, bounds, Args)                                          \
    static __device__ void name##_body(const Args& a);                              \
    extern "C" __global__ void bounds name(const __grid_constant__ Args a) {        \
        wait_for_kernel_before();                                                   \
        name##_body(a);                                                             \
    }                                                                               \
    static __device__ __forceinline__ void name##_body(const Args& a)
// Registers are limited so that at least so many blocks fit a multiprocessor at once.
#define KERNEL(name, threads, blocks, Args) DECLARE_KERNEL(name, __launch_bounds__(threads COMMA blocks), Args)
#define COMMA ,
// One whose threads wait for each other.
#define SYNC_KERNEL KERNEL
#endif

struct __align__(16) Pair {
    u64 x, y;
};

// Numbers modulo a prime, in registers and in work between kernels: integers held exactly in
// doubles where the card has as many units for those, else 64-bit integers. Residues of polynomials
// are u64 in [0, q) either way, and the same.
#ifdef HETAL_INTEGER
typedef i64 num;
#else
typedef double num;
#endif

struct __align__(16) NumPair {
    num x, y;
};

struct __align__(16) DoublePair {
    double x, y;
};

// A prime of the ring. Classes: 0 below 2^47, 1 below 2^50, 2 below 2^51; all are 0 for integers,
// which need no such care.
struct Prime {
    num q, inverse;
    u64 value;
    u32 size_class, shift;
};

#define SMALL 0
#define MEDIUM 1
#define LARGE 2

#ifdef HETAL_INTEGER
// The constant `inverse` is floor(2^(bits + 62) / q), `shift` is bits - 2. For |p| < 2^(2 bits +
// 10), p = t 2^shift + rest, the high half of t times `inverse` is p / q, or less by at most 1.5
// and a bit: of t, rest is less than half of q, and each of the two roundings down takes less than
// one (the first, of a constant above 2^62, next to nothing).
struct Field {
    i64 q, inverse;
    u32 shift;
};

__device__ __forceinline__ Field field_of(i64 q, i64 inverse, u32 shift) {
    Field f = {q, inverse, shift};
    return f;
}

// The number high 2^64 + low modulo q: in [0, q), or slightly below zero if it is negative
// (to_residue lifts it).
__device__ __forceinline__ i64 mod_wide(const Field& f, i64 high, u64 low) {
    i64 t = (i64)((u64)high << (64 - f.shift) | low >> f.shift);
    i64 r = (i64)(low - (u64)__mul64hi(t, f.inverse) * (u64)f.q);
    return r >= f.q ? r - f.q : r;
}

// Of |x| < 2^62.
__device__ __forceinline__ i64 reduce(const Field& f, i64 x) {
    i64 r = x - __mul64hi(x >> f.shift, f.inverse) * f.q;
    return r >= f.q ? r - f.q : r;
}

__device__ __forceinline__ i64 mul(const Field& f, i64 a, i64 b) {
    return mod_wide(f, __mul64hi(a, b), (u64)a * (u64)b);
}

__device__ __forceinline__ i64 to_num(u64 x) {
    return (i64)x;
}

__device__ __forceinline__ u64 to_residue(const Field& f, i64 x) {
    return (u64)(x < 0 ? x + f.q : x);
}

struct Sum {
    i64 high;
    u64 low;
};

__device__ __forceinline__ Sum new_sum(i64) {
    Sum s = {0, 0};
    return s;
}

__device__ __forceinline__ void add_product(Sum& s, i64 x, i64 y) {
    u64 low = (u64)x * (u64)y;
    s.low += low;
    s.high += __mul64hi(x, y) + (i64)(s.low < low);
}

__device__ __forceinline__ Sum first_product(i64, i64 x, i64 y) {
    Sum s = {__mul64hi(x, y), (u64)x * (u64)y};
    return s;
}

__device__ __forceinline__ i64 first_base(bool) {
    return 0;
}

__device__ __forceinline__ i64 signed_base(bool) {
    return 0;
}

__device__ __forceinline__ void ease(const Field&, Sum&) {}

__device__ __forceinline__ i64 sum_mod(const Field& f, const Sum& s, i64) {
    return mod_wide(f, s.high, s.low);
}

__device__ __forceinline__ i64 sum_plus(const Field& f, Sum s, i64 base, double v, i64 y) {
    add_product(s, (i64)v, y);
    return sum_mod(f, s, base);
}

__device__ __forceinline__ Sum restart(const Field& f, const Sum& s, i64 base) {
    Sum next = {0, (u64)sum_mod(f, s, base)};
    return next;
}

__device__ __forceinline__ i64 start_of(const Sum& s) {
    return (i64)s.low;
}
#else
#define TWO_52 4503599627370496.0
#define ROUNDER 6755399441055744.0  // 1.5 2^52
#define TWO_103 10141204801825835211973625643008.0
#define LARGE_BASE 30423614405477505635920876929024.0  // 1.5 2^104

struct Field {
    double q, inverse;
};

__device__ __forceinline__ Field field_of(double q, double inverse, u32) {
    Field f = {q, inverse};
    return f;
}

// The nearest integer of the rounder's sum; |x| < 2^51.
__device__ __forceinline__ double reduce(const Field& f, double x) {
    double c = __fma_rn(x, f.inverse, ROUNDER) - ROUNDER;
    return __fma_rn(-c, f.q, x);
}

__device__ __forceinline__ double mul(const Field& f, double a, double b) {
    double h = a * b;
    double c = __fma_rn(h, f.inverse, ROUNDER) - ROUNDER;
    double l = __fma_rn(a, b, -h);
    return __fma_rn(-c, f.q, h) + l;
}

__device__ __forceinline__ double to_num(u64 x) {
    return __longlong_as_double((i64)(x | 0x4330000000000000ull)) - TWO_52;
}

// The residue in [0, q) of |x| < q.
__device__ __forceinline__ u64 to_residue(const Field& f, double x) {
    double lift = x < 0.0 ? TWO_52 + f.q : TWO_52;
    return (u64)__double_as_longlong(x + lift) ^ 0x4330000000000000ull;
}

// An exact sum of products: see `Sum` in crates/ring/src/kernels/vector.rs.
struct Sum {
    double high, low;
};

__device__ __forceinline__ Sum new_sum(double base) {
    Sum s = {base, 0.0};
    return s;
}

__device__ __forceinline__ void add_product(Sum& s, double x, double y) {
    double high = __fma_rn(x, y, s.high);
    double step_back = s.high - high;
    s.low = s.low + __fma_rn(x, y, step_back);
    s.high = high;
}

__device__ __forceinline__ Sum first_product(double base, double x, double y) {
    double high = __fma_rn(x, y, base);
    Sum s = {high, __fma_rn(x, y, base - high)};
    return s;
}

__device__ __forceinline__ double high_mod(const Field& f, const Sum& s, double base) {
    double high = s.high - base;
    double c = rint(high * f.inverse);
    return __fma_rn(-c, f.q, high);
}

// What sums of products of residues begin with.
__device__ __forceinline__ double first_base(bool large) {
    return large ? LARGE_BASE : TWO_103;
}

// What sums of products of either sign begin with.
__device__ __forceinline__ double signed_base(bool large) {
    return large ? LARGE_BASE : 1.5 * TWO_103;
}

// Reduces the low part of a sum, in the middle of it.
__device__ __forceinline__ void ease(const Field& f, Sum& s) {
    s.low = reduce(f, s.low);
}

__device__ __forceinline__ double sum_mod(const Field& f, const Sum& s, double base) {
    return high_mod(f, s, base) + reduce(f, s.low);
}

// A sum plus v times y, for a small integer v: centred.
__device__ __forceinline__ double sum_plus(const Field& f, const Sum& s, double base, double v, double y) {
    double low = __fma_rn(v, y, reduce(f, s.low));
    return reduce(f, high_mod(f, s, base) + low);
}

// A sum as the start of the next one, and what it is.
__device__ __forceinline__ Sum restart(const Field& f, const Sum& s, double base) {
    Sum next = {base, reduce(f, sum_mod(f, s, base))};
    return next;
}

__device__ __forceinline__ double start_of(const Sum& s) {
    return s.low;
}
#endif

__device__ __forceinline__ Field field_of(const Prime& p) {
    return field_of(p.q, p.inverse, p.shift);
}

// A pair that is read once: it does not push others out of the caches.
__device__ __forceinline__ Pair load_once(const u64* p) {
#ifndef HETAL_EMULATOR
    ulonglong2 v = __ldcs((const ulonglong2*)p);
    Pair pair = {v.x, v.y};
    return pair;
#else
    return *(const Pair*)p;
#endif
}

__device__ __forceinline__ u64 load_one_once(const u64* p) {
#ifndef HETAL_EMULATOR
    return __ldcs(p);
#else
    return *p;
#endif
}

__device__ __forceinline__ u64 add_mod(u64 q, u64 a, u64 b) {
    u64 s = a + b;
    return s >= q ? s - q : s;
}

__device__ __forceinline__ u64 sub_mod(u64 q, u64 a, u64 b) {
    return a >= b ? a - b : a + q - b;
}

// Sums of products of residues. Moduli of 51 bits take 4 products at a time with one factor
// centred, others 8.
struct Dot {
    Field f;
    num base, half;
    bool large;
};

__device__ __forceinline__ Dot new_dot(const Prime& p) {
    Dot d;
    d.f = field_of(p);
    d.large = p.size_class == LARGE;
    d.base = first_base(d.large);
    d.half = (num)(i64)(p.value / 2);
    return d;
}

// A factor as the sums want it.
__device__ __forceinline__ num factor(const Dot& d, u64 x) {
    num v = to_num(x);
    return d.large && v > d.half ? v - d.f.q : v;
}

// Moves a full sum to its total, which is reduced before.
__device__ __forceinline__ void flush(const Dot& d, Sum& s, num& total) {
    total = reduce(d.f, total) + sum_mod(d.f, s, d.base);
    s = new_sum(d.base);
}

__device__ __forceinline__ u64 finish(const Dot& d, num total) {
    return to_residue(d.f, reduce(d.f, total));
}

// Limb `i` of a polynomial over `q` primes of the chain and some special ones: its prime, and its
// place in a polynomial over `own_q >= q` primes of the chain.
__device__ __forceinline__ u32 prime_of(u32 i, u32 q, u32 full_q) {
    return i < q ? i : i - q + full_q;
}

// The source of entry `j` under X -> X^galois: out[j] = a[permuted(j)].
__device__ __forceinline__ u32 permuted(u32 j, u32 galois) {
    u32 exponent = (2u * (__brev(j) >> (32 - LOG_N)) + 1u) * galois;
    return __brev((exponent >> 1) & (N - 1)) >> (32 - LOG_N);
}
