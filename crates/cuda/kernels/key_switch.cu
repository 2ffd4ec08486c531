// Inner products of digits with switching keys, and weighted sums of many of them.

#define MAX_DIGITS 8
#define MAX_STEPS 16
#define MAX_ROWS 8

// Digit `j` of a polynomial is the polynomial itself on the primes starts[j] .. starts[j + 1], and
// limbs of `extended`, which has all limbs of the basis for each digit, on the others.
struct DigitsArgs {
    const u64* source;
    const u64* extended;
    u32 count, limbs;
    u32 starts[MAX_DIGITS + 1], unused;
};

__device__ __forceinline__ const u64* digit_limb(const DigitsArgs& d, u32 j, u32 limb) {
    return limb >= d.starts[j] && limb < d.starts[j + 1] ? d.source + (size_t)limb * N
                                                         : d.extended + ((size_t)j * d.limbs + limb) * N;
}

// The two halves of a key, digit by digit.
struct KeyArgs {
    const u64* halves[MAX_DIGITS][2];
};

// Both sums of one key at two neighbouring entries, `x` the digits there.
template <int DIGITS>
__device__ __forceinline__ void dot_key(
    const Dot& dot, const num (*x)[2], const KeyArgs& key, size_t place, num (*totals)[2]) {
    Pair y[DIGITS][2];
#pragma unroll
    for (int j = 0; j < DIGITS; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) y[j][h] = load_once(key.halves[j][h] + place);
    Sum sums[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sums[h][e] = new_sum(dot.base);
            totals[h][e] = 0;
        }
#pragma unroll
    for (int j = 0; j < DIGITS; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            add_product(sums[h][0], x[j][0], to_num(y[j][h].x));
            add_product(sums[h][1], x[j][1], to_num(y[j][h].y));
            if (j == 3 && DIGITS > 4 && dot.large) {
                flush(dot, sums[h][0], totals[h][0]);
                flush(dot, sums[h][1], totals[h][1]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        flush(dot, sums[h][0], totals[h][0]);
        flush(dot, sums[h][1], totals[h][1]);
    }
}

template <int DIGITS>
__device__ __forceinline__ void load_digits(const Dot& dot, const DigitsArgs& d, u32 limb, u32 i, num (*x)[2]) {
#pragma unroll
    for (int j = 0; j < DIGITS; j++) {
        Pair p = load_pair(digit_limb(d, j, limb), i);
        x[j][0] = factor(dot, p.x);
        x[j][1] = factor(dot, p.y);
    }
}

// acc + (u0 + P lifted0 + plain, u1 + P lifted1)(X^galois) for the inner product (u0, u1); absent
// parts are null.
struct InnerProductArgs {
    const Prime* primes;
    u64* out[2];
    const u64* accumulator[2];
    const u64* lifted[2];
    const u64* plain;
    const num* special_product;  // centred, for each prime of the chain
    u32 q, full_q, key_q, plain_q;
    u32 inverse, unused;  // entry `i` goes to the place permuted(i, inverse)
    DigitsArgs digits;
    KeyArgs key;
};

template <int DIGITS>
__device__ __forceinline__ void inner_product_of(const InnerProductArgs& a) {
    const u32 i = entry_of_thread(), limb = blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const Dot dot = new_dot(prime);
    const u32 place = permuted(i, a.inverse);
    // Everything that is added comes with the first loads.
    Pair lifted[2] = {{0, 0}, {0, 0}}, before[2] = {{0, 0}, {0, 0}}, plain = {0, 0};
    num product = 0;
    if (limb < a.q) {
        product = a.special_product[limb];
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (a.lifted[h]) lifted[h] = load_pair(a.lifted[h] + (size_t)limb * N, i);
    }
    if (a.plain) plain = load_pair(a.plain + (size_t)prime_of(limb, a.q, a.plain_q) * N, i);
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (a.accumulator[h]) before[h] = load_pair(a.accumulator[h] + (size_t)limb * N, place & ~1u);
    num x[DIGITS][2], totals[2][2];
    load_digits<DIGITS>(dot, a.digits, limb, i, x);
    dot_key<DIGITS>(dot, x, a.key, (size_t)prime_of(limb, a.q, a.key_q) * N + i, totals);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        totals[h][0] = reduce(dot.f, totals[h][0]) + mul(dot.f, to_num(lifted[h].x), product);
        totals[h][1] = reduce(dot.f, totals[h][1]) + mul(dot.f, to_num(lifted[h].y), product);
        if (h == 0) {
            totals[h][0] += to_num(plain.x);
            totals[h][1] += to_num(plain.y);
        }
        u64 first = finish(dot, totals[h][0]), second = finish(dot, totals[h][1]);
        u64* out = a.out[h] + (size_t)limb * N;
        const bool swap = place & 1;
        store_pair(out, place & ~1u, add_mod(prime.value, swap ? second : first, before[h].x),
                   add_mod(prime.value, swap ? first : second, before[h].y));
    }
}

#define BY_DIGITS(body, count)    \
    switch (count) {              \
        case 1: body(1); break;   \
        case 2: body(2); break;   \
        case 3: body(3); break;   \
        case 4: body(4); break;   \
        case 5: body(5); break;   \
        case 6: body(6); break;   \
        case 7: body(7); break;   \
        default: body(8);         \
    }

KERNEL(inner_product, POINT_THREADS, 2, InnerProductArgs) {
#define BODY(D) inner_product_of<D>(a)
    BY_DIGITS(BODY, a.digits.count)
#undef BODY
}

// One automorphism: entry `i` goes to the place permuted(i, inverse). Without a key it is the
// identity.
struct StepArgs {
    KeyArgs key;
    u32 inverse, key_q, is_identity, unused;
};

// For each step the pair sigma(P c0 + <d, k0>, <d, k1>), on limbs first .. first + gridDim.y.
// `rotated` has for each step two polynomials of gridDim.y limbs.
struct RotatedArgs {
    const Prime* primes;
    const u64* c0;
    const num* special_product;  // centred, for each prime of the chain
    u64* rotated;
    u32 q, full_q, first, steps_count;
    DigitsArgs digits;
    StepArgs steps[MAX_STEPS];
};

__device__ __forceinline__ void store_permuted(u64* limb, u32 place, u64 x, u64 y) {
    store_pair(limb, place & ~1u, place & 1 ? y : x, place & 1 ? x : y);
}

template <int DIGITS>
__device__ __forceinline__ void rotated_of(const RotatedArgs& a) {
    const u32 i = entry_of_thread(), limb = a.first + blockIdx.y;
    const Dot dot = new_dot(a.primes[prime_of(limb, a.q, a.full_q)]);
    num x[DIGITS][2];
    load_digits<DIGITS>(dot, a.digits, limb, i, x);
    const bool in_chain = limb < a.q;
    num lifted[2] = {0, 0}, product = 0;
    if (in_chain) {
        product = a.special_product[limb];
        Pair c = load_pair(a.c0 + (size_t)limb * N, i);
        lifted[0] = mul(dot.f, to_num(c.x), product);
        lifted[1] = mul(dot.f, to_num(c.y), product);
    }
    for (u32 b = 0; b < a.steps_count; b++) {
        const StepArgs& step = a.steps[b];
        u64* out0 = a.rotated + ((size_t)(2 * b) * gridDim.y + blockIdx.y) * N;
        u64* out1 = out0 + (size_t)gridDim.y * N;
        num totals[2][2];
        if (step.is_identity) {
            Pair c = {0, 0};
            if (in_chain) c = load_pair(a.digits.source + (size_t)limb * N, i);
            totals[0][0] = totals[0][1] = 0;
            totals[1][0] = mul(dot.f, to_num(c.x), product);
            totals[1][1] = mul(dot.f, to_num(c.y), product);
        } else {
            dot_key<DIGITS>(dot, x, step.key, (size_t)prime_of(limb, a.q, step.key_q) * N + i, totals);
        }
        const u32 place = permuted(i, step.inverse);
        store_permuted(out0, place, finish(dot, totals[0][0] + lifted[0]), finish(dot, totals[0][1] + lifted[1]));
        store_permuted(out1, place, finish(dot, totals[1][0]), finish(dot, totals[1][1]));
    }
}

KERNEL(rotated_pairs, POINT_THREADS, 2, RotatedArgs) {
#define BODY(D) rotated_of<D>(a)
    BY_DIGITS(BODY, a.digits.count)
#undef BODY
}

// For each row the sums of weights times rotated pairs, on limbs first .. first + gridDim.y.
struct WeighArgs {
    const Prime* primes;
    const u64* rotated;
    u64* out[MAX_ROWS][2];
    u32 q, full_q, first, steps_count;
    u32 rows, accumulate;
    const u64* weights[MAX_STEPS][MAX_ROWS];  // null: absent
    u32 weight_q[MAX_STEPS][MAX_ROWS];
};

#define WEIGH_THREADS 128

// Rows beyond `rows` have no weights. To save registers a sum's total so far, reduced, stays in its
// low part: half of q beside 6 half units of 2^51 (of 2^52, beside 3, for moduli of 51 bits) is
// still below 2^53.
template <int ROWS>
__device__ __forceinline__ void weigh_rows(const WeighArgs& a) {
    const u32 i = blockIdx.x * WEIGH_THREADS + threadIdx.x, limb = a.first + blockIdx.y;
    const Prime prime = a.primes[prime_of(limb, a.q, a.full_q)];
    const Dot dot = new_dot(prime);
    Sum sums[ROWS][2];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) sums[r][h] = new_sum(dot.base);
    const u32 group = dot.large ? 3 : 6;
    const u64* rotated = a.rotated + (size_t)blockIdx.y * N + i;
    const size_t stride = (size_t)gridDim.y * N;
    for (u32 start = 0; start < a.steps_count; start += group) {
        const u32 end = min(start + group, a.steps_count);
#pragma unroll 2
        for (u32 b = start; b < end; b++) {
            const num x0 = factor(dot, rotated[2 * b * stride]), x1 = factor(dot, rotated[(2 * b + 1) * stride]);
            u64 w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const u64* weight = a.weights[b][r];
                const size_t place = (size_t)prime_of(limb, a.q, a.weight_q[b][r]) * N + i;
                w[r] = weight ? load_one_once(weight + place) : 0;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                add_product(sums[r][0], x0, to_num(w[r]));
                add_product(sums[r][1], x1, to_num(w[r]));
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sums[r][h] = restart(dot.f, sums[r][h], dot.base);
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < a.rows)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u64* out = a.out[r][h] + (size_t)limb * N + i;
                u64 x = to_residue(dot.f, start_of(sums[r][h]));
                *out = a.accumulate ? add_mod(prime.value, x, *out) : x;
            }
}

KERNEL(weigh, WEIGH_THREADS, 4, WeighArgs) {
    if (a.rows == 1) weigh_rows<1>(a);
    else if (a.rows == 2) weigh_rows<2>(a);
    else if (a.rows <= 4) weigh_rows<4>(a);
    else weigh_rows<8>(a);
}
