// Kernels entry by entry. Blocks are of one limb (blockIdx.y); a thread has two neighbouring
// entries.

#define POINT_THREADS 256
#define MAX_LIMBS 96

__device__ __forceinline__ u32 entry_of_thread() {
    return 2 * (blockIdx.x * POINT_THREADS + threadIdx.x);
}

__device__ __forceinline__ Pair load_pair(const u64* limb, u32 i) {
    return *(const Pair*)(limb + i);
}

__device__ __forceinline__ void store_pair(u64* limb, u32 i, u64 x, u64 y) {
    Pair p = {x, y};
    *(Pair*)(limb + i) = p;
}

// Polynomials over `q` primes of the chain and some special ones; operands have `a_q`, `b_q` of the
// chain.
struct BinaryArgs {
    const Prime* primes;
    u64* out;
    const u64* a;
    const u64* b;
    u32 q, full_q, a_q, b_q;
};

struct Operands {
    Prime prime;
    u64* out;
    const u64* a;
    const u64* b;
};

__device__ __forceinline__ Operands operands_of(const BinaryArgs& a) {
    const u32 limb = blockIdx.y;
    Operands o = {a.primes[prime_of(limb, a.q, a.full_q)], a.out + (size_t)limb * N,
                  a.a + (size_t)prime_of(limb, a.q, a.a_q) * N, a.b + (size_t)prime_of(limb, a.q, a.b_q) * N};
    return o;
}

KERNEL(add, POINT_THREADS, 4, BinaryArgs) {
    const u32 i = entry_of_thread();
    const Operands o = operands_of(a);
    const u64 q = o.prime.value;
    Pair x = load_pair(o.a, i), y = load_pair(o.b, i);
    store_pair(o.out, i, add_mod(q, x.x, y.x), add_mod(q, x.y, y.y));
}

KERNEL(sub, POINT_THREADS, 4, BinaryArgs) {
    const u32 i = entry_of_thread();
    const Operands o = operands_of(a);
    const u64 q = o.prime.value;
    Pair x = load_pair(o.a, i), y = load_pair(o.b, i);
    store_pair(o.out, i, sub_mod(q, x.x, y.x), sub_mod(q, x.y, y.y));
}

KERNEL(neg, POINT_THREADS, 4, BinaryArgs) {
    const u32 i = entry_of_thread();
    const Operands o = operands_of(a);
    const u64 q = o.prime.value;
    Pair x = load_pair(o.a, i);
    store_pair(o.out, i, sub_mod(q, 0, x.x), sub_mod(q, 0, x.y));
}

__device__ __forceinline__ u64 product(const Field& f, u64 x, u64 y) {
    return to_residue(f, mul(f, to_num(x), to_num(y)));
}

KERNEL(multiply, POINT_THREADS, 4, BinaryArgs) {
    const u32 i = entry_of_thread();
    const Operands o = operands_of(a);
    const Field f = field_of(o.prime);
    Pair x = load_pair(o.a, i), y = load_pair(o.b, i);
    store_pair(o.out, i, product(f, x.x, y.x), product(f, x.y, y.y));
}

struct MulAddArgs {
    BinaryArgs operands;
    const u64* accumulator;
};

KERNEL(multiply_add, POINT_THREADS, 4, MulAddArgs) {
    const u32 i = entry_of_thread();
    const Operands o = operands_of(a.operands);
    const Field f = field_of(o.prime);
    const u64 q = o.prime.value;
    Pair x = load_pair(o.a, i), y = load_pair(o.b, i), c = load_pair(a.accumulator + (size_t)blockIdx.y * N, i);
    store_pair(o.out, i, add_mod(q, c.x, product(f, x.x, y.x)), add_mod(q, c.y, product(f, x.y, y.y)));
}

// Constants of the two halves of the entries, for each limb: centred for products, residues for
// sums.
struct HalvesArgs {
    const Prime* primes;
    u64* out;
    const u64* a;
    const u64* accumulator;
    u32 q, full_q, a_q, unused;
    num constants[MAX_LIMBS][2];
};

__device__ __forceinline__ num half_constant(const HalvesArgs& a, u32 i) {
    return a.constants[blockIdx.y][i < N / 2 ? 0 : 1];
}

KERNEL(multiply_halves, POINT_THREADS, 4, HalvesArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Field f = field_of(a.primes[prime_of(limb, a.q, a.full_q)]);
    const num c = half_constant(a, i);
    Pair x = load_pair(a.a + (size_t)prime_of(limb, a.q, a.a_q) * N, i);
    store_pair(a.out + (size_t)limb * N, i, to_residue(f, mul(f, to_num(x.x), c)),
               to_residue(f, mul(f, to_num(x.y), c)));
}

KERNEL(multiply_halves_add, POINT_THREADS, 4, HalvesArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const Field f = field_of(prime);
    const u64 q = prime.value;
    const num c = half_constant(a, i);
    Pair x = load_pair(a.a + (size_t)prime_of(limb, a.q, a.a_q) * N, i);
    Pair y = load_pair(a.accumulator + (size_t)limb * N, i);
    store_pair(a.out + (size_t)limb * N, i, add_mod(q, y.x, to_residue(f, mul(f, to_num(x.x), c))),
               add_mod(q, y.y, to_residue(f, mul(f, to_num(x.y), c))));
}

KERNEL(add_halves, POINT_THREADS, 4, HalvesArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const u64 c = (u64)half_constant(a, i), q = prime.value;
    Pair x = load_pair(a.a + (size_t)limb * N, i);
    store_pair(a.out + (size_t)limb * N, i, add_mod(q, x.x, c), add_mod(q, x.y, c));
}

// start + sum_k c_k a_k for pairs of polynomials. Row `k` of the constants has those of term `k`
// for each limb, centred; the row after the last term, if `has_constant`, residues to add to the
// first sum.
#define MAX_LINEAR 8
#define MAX_CONSTANTS 224

struct LinearArgs {
    const Prime* primes;
    u64* out[2];
    const u64* start[2];  // null: zero
    u32 q, full_q, count, has_constant;
    u32 limbs, unused;
    const u64* terms[MAX_LINEAR][2];
    u32 chain[MAX_LINEAR];  // primes of the chain of each term
    num constants[MAX_CONSTANTS][2];
};

KERNEL(linear_sum, POINT_THREADS, 4, LinearArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y, half = i < N / 2 ? 0 : 1;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    Dot dot = new_dot(prime);
    // Products with centred constants have both signs.
    dot.base = signed_base(dot.large);
    const u32 group = dot.large ? 4 : 8;
    Sum sums[2][2];
    num totals[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[h][e] = new_sum(dot.base);
            totals[h][e] = 0;
        }
    for (u32 start = 0; start < a.count; start += group) {
        const u32 end = min(start + group, a.count);
#pragma unroll 4
        for (u32 k = start; k < end; k++) {
            const num c = a.constants[k * a.limbs + limb][half];
            const size_t place = (size_t)prime_of(limb, a.q, a.chain[k]) * N;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                Pair x = load_pair(a.terms[k][h] + place, i);
                add_product(sums[h][0], to_num(x.x), c);
                add_product(sums[h][1], to_num(x.y), c);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) flush(dot, sums[h][e], totals[h][e]);
    }
    const u64 constant = a.has_constant ? (u64)a.constants[a.count * a.limbs + limb][half] : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u64 x = finish(dot, totals[h][0]), y = finish(dot, totals[h][1]);
        if (a.start[h]) {
            Pair before = load_pair(a.start[h] + (size_t)limb * N, i);
            x = add_mod(prime.value, x, before.x);
            y = add_mod(prime.value, y, before.y);
        }
        if (h == 0) {
            x = add_mod(prime.value, x, constant);
            y = add_mod(prime.value, y, constant);
        }
        store_pair(a.out[h] + (size_t)limb * N, i, x, y);
    }
}

struct AutomorphismArgs {
    u64* out;
    const u64* a;
    u32 galois, unused;
};

KERNEL(automorphism, POINT_THREADS, 4, AutomorphismArgs) {
    const u32 i = entry_of_thread();
    const u64* limb = a.a + (size_t)blockIdx.y * N;
    // Neighbours stay neighbours: the source of i + 1 is the other entry of the pair.
    const u32 source = permuted(i, a.galois);
    Pair x = load_pair(limb, source & ~1u);
    store_pair(a.out + (size_t)blockIdx.y * N, i, source & 1 ? x.y : x.x, source & 1 ? x.x : x.y);
}

// Signed coefficients below 2^62 to the work of a forward transform: see `Modulus::reduce_i64`.
struct LiftArgs {
    const Prime* primes;
    const i64* coefficients;  // of `lift_scaled`: doubles
    num* out;
    double factor;
    u32 q, full_q;
};

__device__ __forceinline__ num lift_one(const Prime& prime, i64 z) {
#ifdef HETAL_INTEGER
    return reduce(field_of(prime), z);
#else
    const i64 q = (i64)prime.value;
    i64 r = z - (i64)((double)z * prime.inverse) * q;
    r += q & (r >> 63);
    r += q & (r >> 63);
    r -= q & ((q - 1 - r) >> 63);
    r -= q & ((q - 1 - r) >> 63);
    return (double)r;
#endif
}

KERNEL(lift, POINT_THREADS, 4, LiftArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    NumPair p = {lift_one(prime, a.coefficients[i]), lift_one(prime, a.coefficients[i + 1])};
    *(NumPair*)(a.out + (size_t)limb * N + i) = p;
}

// The same of real coefficients times a factor, rounded to even.
KERNEL(lift_scaled, POINT_THREADS, 4, LiftArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const DoublePair c = *(const DoublePair*)(a.coefficients + i);
    NumPair p = {lift_one(prime, (i64)rint(c.x * a.factor)), lift_one(prime, (i64)rint(c.y * a.factor))};
    *(NumPair*)(a.out + (size_t)limb * N + i) = p;
}

// Sums of products of pairs: (sum a0 b0, sum a0 b1 + a1 b0, sum a1 b1).
#define MAX_TERMS 32

struct TensorTerm {
    const u64* factors[4];  // a0, a1, b0, b1
    u32 chain[4];           // their primes of the chain
};

struct TensorArgs {
    const Prime* primes;
    u64* out[3];
    u32 q, full_q, count, accumulate;
    TensorTerm terms[MAX_TERMS];
};

KERNEL(tensor_sum, POINT_THREADS, 4, TensorArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const Dot dot = new_dot(prime);
    Sum sums[3][2];
    num totals[3][2];
#pragma unroll
    for (int s = 0; s < 3; s++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[s][e] = new_sum(dot.base);
            totals[s][e] = 0;
        }
    // The middle sum takes two products a term.
    const u32 full = dot.large ? 2 : 4;
    u32 held = 0;
    for (u32 k = 0; k < a.count; k++) {
        const TensorTerm& term = a.terms[k];
        u64 v[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            Pair p = load_pair(term.factors[j] + (size_t)prime_of(limb, a.q, term.chain[j]) * N, i);
            v[j][0] = p.x;
            v[j][1] = p.y;
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            num a0 = factor(dot, v[0][e]), a1 = factor(dot, v[1][e]);
            num b0 = to_num(v[2][e]), b1 = to_num(v[3][e]);
            add_product(sums[0][e], a0, b0);
            add_product(sums[1][e], a0, b1);
            add_product(sums[1][e], a1, b0);
            add_product(sums[2][e], a1, b1);
        }
        if (++held == full || k + 1 == a.count) {
            held = 0;
#pragma unroll
            for (int s = 0; s < 3; s++)
#pragma unroll
                for (int e = 0; e < 2; e++) flush(dot, sums[s][e], totals[s][e]);
        }
    }
#pragma unroll
    for (int s = 0; s < 3; s++) {
        u64* out = a.out[s] + (size_t)limb * N;
        u64 x = finish(dot, totals[s][0]), y = finish(dot, totals[s][1]);
        if (a.accumulate) {
            Pair before = load_pair(out, i);
            x = add_mod(prime.value, x, before.x);
            y = add_mod(prime.value, y, before.y);
        }
        store_pair(out, i, x, y);
    }
}

// Sums of products of pairs with single polynomials: (sum a0 b, sum a1 b).
struct PlainTerm {
    const u64* factors[3];  // a0, a1, b
    u32 chain[3], unused;   // their primes of the chain
};

struct PlainArgs {
    const Prime* primes;
    u64* out[2];
    u32 q, full_q, count, accumulate;
    PlainTerm terms[MAX_TERMS];
};

KERNEL(plain_sum, POINT_THREADS, 4, PlainArgs) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const Dot dot = new_dot(prime);
    Sum sums[2][2];
    num totals[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[h][e] = new_sum(dot.base);
            totals[h][e] = 0;
        }
    const u32 group = dot.large ? 4 : 8;
    for (u32 start = 0; start < a.count; start += group) {
        const u32 end = min(start + group, a.count);
#pragma unroll 2
        for (u32 k = start; k < end; k++) {
            const PlainTerm& term = a.terms[k];
            Pair v[3];
#pragma unroll
            for (int j = 0; j < 3; j++)
                v[j] = load_pair(term.factors[j] + (size_t)prime_of(limb, a.q, term.chain[j]) * N, i);
            const num b0 = factor(dot, v[2].x), b1 = factor(dot, v[2].y);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                add_product(sums[h][0], to_num(v[h].x), b0);
                add_product(sums[h][1], to_num(v[h].y), b1);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) flush(dot, sums[h][e], totals[h][e]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u64* out = a.out[h] + (size_t)limb * N;
        u64 x = finish(dot, totals[h][0]), y = finish(dot, totals[h][1]);
        if (a.accumulate) {
            Pair before = load_pair(out, i);
            x = add_mod(prime.value, x, before.x);
            y = add_mod(prime.value, y, before.y);
        }
        store_pair(out, i, x, y);
    }
}

// Does nothing for a while: puts kernels that do not wait for each other out of step.
struct PauseArgs {
    u64 cycles;
};

KERNEL(pause, 32, 1, PauseArgs) {
#ifndef HETAL_EMULATOR
    const i64 start = clock64();
    while ((u64)(clock64() - start) < a.cycles) {
    }
#endif
}
