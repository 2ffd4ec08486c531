// The transform in two kernels: LOG_N - 8 stages on columns of 2^(LOG_N - 8) rows of 256, and 8
// stages on the rows. Stages go in pairs; the bounds of each are in crates/ring/src/ntt/vector.rs.
//
// Roots of one prime: `roots[k] = psi^brv(k)`, centred, for k < N/16, in heap order (node k has the
// children 2k, 2k + 1); then those of the leftmost nodes below node N/16 + i, at the levels 0 to 3,
// for i < N/16. The others are products: the bits of brv(2^level h + k) are those of brv(2^level h)
// and brv(k), so roots[2^level h + k] = roots[2^level h] roots[k].

#define FIRST 0
#define MIDDLE 1
#define LAST 2

#define ROW 256
#define ROOTS (5 * (N / 16))  // numbers of one prime
#define ROW_THREADS (N / 16 < 256 ? N / 16 : 256)
#define ROW_PADDED 272  // 17 numbers for 16, so that both directions of an exchange are free of bank conflicts

// Columns: 2^(UPPER + LOWER) rows; a thread has 2^UPPER values.
#define LOG_ROWS (LOG_N - 8)
#define UPPER (LOG_ROWS == 9 ? 5 : LOG_ROWS < 4 ? LOG_ROWS : 4)
#define LOWER (LOG_ROWS - UPPER)
#define COLUMNS (LOG_ROWS > 4 ? 4096 >> LOG_ROWS : 256)
#define COLUMN_THREADS (COLUMNS << LOWER)

// One transform of a batch: its prime, its places in the buffers, and the constants of its end.
struct Job {
    u32 prime, group, from, to;
    num scale, scaled_root;
};

struct NttArgs {
    const Prime* primes;
    const num* roots;
    const Job* jobs;
    // Coefficients or half-done transforms, `Job::from` (backward: `Job::to`) counted in limbs.
    num* work;
    // Values, by `Job::group`; places counted in limbs.
    const u64* in[2];
    u64* out[2];
    u32 inverse, unused;  // of the automorphism that follows a division
};

template <int CLASS, int PLACE>
__device__ __forceinline__ void forward4(
    const Field& f, num& x0, num& x1, num& x2, num& x3, num w1, num w2, num w3) {
    if (CLASS == MEDIUM && PLACE == MIDDLE) x0 = reduce(f, x0);
    if (CLASS == LARGE && PLACE != FIRST) x1 = reduce(f, x1);
    num t2 = mul(f, x2, w1), t3 = mul(f, x3, w1);
    num y0 = x0 + t2, y2 = x0 - t2;
    num y1 = x1 + t3, y3 = x1 - t3;
    if (CLASS == LARGE && PLACE != LAST) {
        y0 = reduce(f, y0);
        y2 = reduce(f, y2);
    }
    num t1 = mul(f, y1, w2);
    t3 = mul(f, y3, w3);
    x0 = y0 + t1;
    x1 = y0 - t1;
    x2 = y2 + t3;
    x3 = y2 - t3;
}

template <int CLASS, bool IS_FIRST>
__device__ __forceinline__ void forward2(const Field& f, num& x0, num& x1, num w) {
    num low = CLASS == LARGE && !IS_FIRST ? reduce(f, x0) : x0;
    num t = mul(f, x1, w);
    x0 = low + t;
    x1 = low - t;
}

template <int CLASS>
__device__ __forceinline__ void inverse4(
    const Field& f, num& x0, num& x1, num& x2, num& x3, num w1, num w2, num w3) {
    num s0 = x0 + x1, s1 = x2 + x3;
    num d0 = mul(f, x1 - x0, w2), d1 = mul(f, x3 - x2, w3);
    x0 = reduce(f, s0 + s1);
    x1 = d0 + d1;
    if (CLASS != SMALL) x1 = reduce(f, x1);
    num difference = s1 - s0;
    if (CLASS == LARGE) difference = reduce(f, difference);
    x2 = mul(f, difference, w1);
    x3 = mul(f, d1 - d0, w1);
}

template <int CLASS>
__device__ __forceinline__ void inverse2(const Field& f, num& x0, num& x1, num w) {
    num difference = x1 - x0;
    x0 = reduce(f, x0 + x1);
    x1 = mul(f, difference, w);
}

template <int CLASS>
__device__ __forceinline__ void inverse_last4(const Field& f, num& x0, num& x1, num& x2, num& x3, num w2,
                                              num w3, num scale, num scaled_root) {
    num s0 = x0 + x1, s1 = x2 + x3;
    num d0 = mul(f, x1 - x0, w2), d1 = mul(f, x3 - x2, w3);
    num sum = s0 + s1, difference = s1 - s0;
    if (CLASS == LARGE) {
        sum = reduce(f, sum);
        difference = reduce(f, difference);
    }
    x0 = mul(f, sum, scale);
    x1 = mul(f, d0 + d1, scale);
    x2 = mul(f, difference, scaled_root);
    x3 = mul(f, d1 - d0, scaled_root);
}

// Where the roots of a register block are: node `node` of the heap, or the leaves' own table.
struct Nodes {
    const num* roots;
    u32 node;
    __device__ __forceinline__ num at(u32 k, u32 level) const { return __ldg(roots + (node << level) + k); }
};

// Four roots of each thread's own, and the products of them with those of the first seven nodes.
struct Leaves {
    num own[4];
    Field f;
    const num* roots;
    __device__ __forceinline__ num at(u32 k, u32 level) const {
        return k == 0 ? own[level] : reduce(f, mul(f, own[level], __ldg(roots + k)));
    }
};

__device__ __forceinline__ Leaves leaves_of(const Field& f, const num* roots, u32 i) {
    Leaves leaves;
    leaves.f = f;
    leaves.roots = roots;
#pragma unroll
    for (int level = 0; level < 4; level++) leaves.own[level] = __ldg(roots + (level + 1) * (N / 16) + i);
    return leaves;
}

// Two stages on 2^LOG values, from `LEVEL` on: block `k` of a stage has the root `at(k, level)`.
template <int CLASS, int LOG, int LEVEL, int PLACE, class Roots>
__device__ __forceinline__ void forward_pair(const Field& f, num* x, const Roots& w) {
    const int quarter = 1 << (LOG - LEVEL - 2);
#pragma unroll
    for (int k = 0; k < 1 << LEVEL; k++) {
        num w1 = w.at(k, LEVEL), w2 = w.at(2 * k, LEVEL + 1), w3 = w.at(2 * k + 1, LEVEL + 1);
#pragma unroll
        for (int i = 0; i < quarter; i++) {
            num* p = x + 4 * quarter * k + i;
            forward4<CLASS, PLACE>(f, p[0], p[quarter], p[2 * quarter], p[3 * quarter], w1, w2, w3);
        }
    }
}

// `LOG` stages on 2^LOG values.
template <int CLASS, int LOG, int PLACE, class Roots>
__device__ __forceinline__ void forward_block(const Field& f, num* x, const Roots& w) {
    if constexpr (LOG % 2 == 1) {
        num root = w.at(0, 0);
#pragma unroll
        for (int i = 0; i < (1 << LOG) / 2; i++)
            forward2<CLASS, PLACE == FIRST>(f, x[i], x[i + (1 << LOG) / 2], root);
    }
    constexpr int START = LOG % 2, PAIRS = LOG / 2;
    constexpr int BEGIN = PLACE == FIRST && START == 0 ? FIRST : PLACE == LAST && PAIRS == 1 ? LAST : MIDDLE;
    if constexpr (PAIRS >= 1) forward_pair<CLASS, LOG, START, BEGIN>(f, x, w);
    if constexpr (PAIRS >= 2) forward_pair<CLASS, LOG, START + 2, PLACE == LAST ? LAST : MIDDLE>(f, x, w);
}

// Two inverse stages, with the roots of the mirrored blocks; the last two of all (`SCALED`) with
// the scale.
template <int CLASS, int LOG, int LEVEL, bool SCALED, class Roots>
__device__ __forceinline__ void inverse_pair(
    const Field& f, num* x, const Roots& w, num scale, num scaled_root) {
    const int quarter = 1 << (LOG - LEVEL - 2);
#pragma unroll
    for (int k = 0; k < 1 << LEVEL; k++) {
        const int mirror = (1 << LEVEL) - 1 - k;
        num w2 = w.at(2 * mirror + 1, LEVEL + 1), w3 = w.at(2 * mirror, LEVEL + 1);
        num w1 = SCALED ? num(0) : w.at(mirror, LEVEL);
#pragma unroll
        for (int i = 0; i < quarter; i++) {
            num* p = x + 4 * quarter * k + i;
            if constexpr (SCALED)
                inverse_last4<CLASS>(f, p[0], p[quarter], p[2 * quarter], p[3 * quarter], w2, w3, scale, scaled_root);
            else
                inverse4<CLASS>(f, p[0], p[quarter], p[2 * quarter], p[3 * quarter], w1, w2, w3);
        }
    }
}

// `LOG` inverse stages on 2^LOG values; the last of all transforms' stages if `SCALED`.
template <int CLASS, int LOG, bool SCALED, class Roots>
__device__ __forceinline__ void inverse_block(
    const Field& f, num* x, const Roots& w, num scale, num scaled_root) {
    constexpr int START = LOG % 2, PAIRS = LOG / 2;
    if constexpr (PAIRS >= 2) inverse_pair<CLASS, LOG, START + 2, false>(f, x, w, scale, scaled_root);
    if constexpr (PAIRS >= 1) inverse_pair<CLASS, LOG, START, SCALED && START == 0>(f, x, w, scale, scaled_root);
    if constexpr (START == 1) {
        const int half = (1 << LOG) / 2;
        num root = SCALED ? num(0) : w.at(0, 0);
#pragma unroll
        for (int i = 0; i < half; i++) {
            if (SCALED) {
                num sum = x[i] + x[i + half], difference = x[i + half] - x[i];
                x[i] = mul(f, sum, scale);
                x[i + half] = mul(f, difference, scaled_root);
            } else {
                inverse2<CLASS>(f, x[i], x[i + half], root);
            }
        }
    }
}

__device__ __forceinline__ const num* roots_of(const NttArgs& a, const Job& job) {
    return a.roots + (size_t)job.prime * ROOTS;
}

// The first stages: from coefficients, |x| <= q, in place.
template <int CLASS>
__device__ __forceinline__ void forward_columns(const NttArgs& a, const Job& job, num* shared) {
    const Field f = field_of(a.primes[job.prime]);
    const num* roots = roots_of(a, job);
    const u32 column = threadIdx.x % COLUMNS, k = threadIdx.x / COLUMNS;
    num* data = a.work + (size_t)job.from * N + blockIdx.x * COLUMNS + column;
    num x[1 << UPPER];
#pragma unroll
    for (int j = 0; j < 1 << UPPER; j++) x[j] = data[(k + (j << LOWER)) * ROW];
    Nodes top = {roots, 1};
    forward_block<CLASS, UPPER, FIRST>(f, x, top);
    if (LOWER > 0) {
#pragma unroll
        for (int j = 0; j < 1 << UPPER; j++) shared[(k + (j << LOWER)) * COLUMNS + column] = x[j];
        __syncthreads();
#pragma unroll
        for (int u = 0; u < 1 << (UPPER - LOWER); u++) {
            const u32 group = k + (u << LOWER);
            num* y = x + (u << LOWER);
#pragma unroll
            for (int j = 0; j < 1 << LOWER; j++) y[j] = shared[((group << LOWER) + j) * COLUMNS + column];
            Nodes nodes = {roots, (1u << UPPER) + group};
            forward_block<CLASS, LOWER, MIDDLE>(f, y, nodes);
        }
    }
#pragma unroll
    for (int u = 0; u < 1 << (UPPER - LOWER); u++) {
        const u32 group = k + (u << LOWER);
#pragma unroll
        for (int j = 0; j < 1 << LOWER; j++) data[((group << LOWER) + j) * ROW] = x[(u << LOWER) + j];
    }
}

// The last inverse stages, in place: coefficients times the scale, centred.
template <int CLASS>
__device__ __forceinline__ void inverse_columns(const NttArgs& a, const Job& job, num* shared) {
    const Prime prime = a.primes[job.prime];
    const Field f = field_of(prime);
    const num half = (num)(i64)(prime.value / 2);
    const num* roots = roots_of(a, job);
    const u32 column = threadIdx.x % COLUMNS, k = threadIdx.x / COLUMNS;
    num* data = a.work + (size_t)job.to * N + blockIdx.x * COLUMNS + column;
    num x[1 << UPPER];
#pragma unroll
    for (int u = 0; u < 1 << (UPPER - LOWER); u++) {
        const u32 group = k + (u << LOWER);
#pragma unroll
        for (int j = 0; j < 1 << LOWER; j++) x[(u << LOWER) + j] = data[((group << LOWER) + j) * ROW];
    }
    if (LOWER > 0) {
#pragma unroll
        for (int u = 0; u < 1 << (UPPER - LOWER); u++) {
            const u32 group = k + (u << LOWER);
            num* y = x + (u << LOWER);
            Nodes nodes = {roots, (2u << UPPER) - 1 - group};
            inverse_block<CLASS, LOWER, false>(f, y, nodes, num(0), num(0));
#pragma unroll
            for (int j = 0; j < 1 << LOWER; j++) shared[((group << LOWER) + j) * COLUMNS + column] = y[j];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 1 << UPPER; j++) x[j] = shared[(k + (j << LOWER)) * COLUMNS + column];
    }
    Nodes top = {roots, 1};
    inverse_block<CLASS, UPPER, true>(f, x, top, job.scale, job.scaled_root);
#pragma unroll
    for (int j = 0; j < 1 << UPPER; j++) {
        num y = x[j];
        y = y > half ? y - f.q : y < -half ? y + f.q : y;
        data[(k + (j << LOWER)) * ROW] = y;
    }
}

// The place of element `e` of a row in shared memory.
__device__ __forceinline__ u32 padded(u32 e) {
    return e + (e >> 4);
}

// The last stages, to values. `DIVIDE`: `(in - value) scale` instead of the value.
template <int CLASS, bool DIVIDE>
__device__ __forceinline__ void forward_rows(const NttArgs& a, const Job& job, num* shared) {
    const Field f = field_of(a.primes[job.prime]);
    const num* roots = roots_of(a, job);
    const u32 k = threadIdx.x % 16, row = blockIdx.x * (ROW_THREADS / 16) + threadIdx.x / 16;
    const num* data = a.work + (size_t)job.from * N + row * ROW;
    num* exchange = shared + (threadIdx.x / 16) * ROW_PADDED;
    num x[16];
#pragma unroll
    for (int j = 0; j < 16; j++) x[j] = data[k + 16 * j];
    const Leaves leaves = leaves_of(f, roots, row * 16 + k);
    Nodes nodes = {roots, N / ROW + row};
    forward_block<CLASS, 4, MIDDLE>(f, x, nodes);
#pragma unroll
    for (int j = 0; j < 16; j++) exchange[padded(k + 16 * j)] = x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) x[j] = exchange[padded(16 * k + j)];
    forward_block<CLASS, 4, LAST>(f, x, leaves);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) exchange[padded(16 * k + j)] = reduce(f, x[j]);
    u64* out = a.out[job.group] + (size_t)job.to * N;
    if (DIVIDE) {
        // All at once, before anything is written.
        const u64* in = a.in[job.group] + (size_t)job.to * N + row * ROW;
#pragma unroll
        for (int j = 0; j < 16; j++) x[j] = to_num(in[k + 16 * j]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) {
        num value = exchange[padded(k + 16 * j)];
        x[j] = DIVIDE ? mul(f, x[j] - value, job.scale) : value;
    }
    if (DIVIDE && a.inverse != 1) {
#pragma unroll
        for (int j = 0; j < 16; j++) out[permuted(row * ROW + k + 16 * j, a.inverse)] = to_residue(f, x[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 16; j++) out[row * ROW + k + 16 * j] = to_residue(f, x[j]);
    }
}

// The first inverse stages, from values.
template <int CLASS>
__device__ __forceinline__ void inverse_rows(const NttArgs& a, const Job& job, num* shared) {
    const Field f = field_of(a.primes[job.prime]);
    const num* roots = roots_of(a, job);
    const u32 k = threadIdx.x % 16, row = blockIdx.x * (ROW_THREADS / 16) + threadIdx.x / 16;
    const u64* in = a.in[job.group] + (size_t)job.from * N + row * ROW;
    num* data = a.work + (size_t)job.to * N + row * ROW;
    num* exchange = shared + (threadIdx.x / 16) * ROW_PADDED;
    num x[16];
#pragma unroll
    for (int j = 0; j < 16; j++) exchange[padded(k + 16 * j)] = to_num(in[k + 16 * j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) x[j] = exchange[padded(16 * k + j)];
    const Leaves leaves = leaves_of(f, roots, N / 16 - 1 - (row * 16 + k));
    inverse_block<CLASS, 4, false>(f, x, leaves, num(0), num(0));
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) exchange[padded(16 * k + j)] = x[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) x[j] = exchange[padded(k + 16 * j)];
    Nodes nodes = {roots, 2 * (N / ROW) - 1 - row};
    inverse_block<CLASS, 4, false>(f, x, nodes, num(0), num(0));
#pragma unroll
    for (int j = 0; j < 16; j++) data[k + 16 * j] = x[j];
}

// More would leave too few registers to keep loads in flight.
#define NTT_BLOCKS 3

// One body per class of moduli.
#define BY_CLASS(body)                              \
    const Job job = a.jobs[blockIdx.y];             \
    const u32 size_class = a.primes[job.prime].size_class; \
    if (size_class == SMALL) body(SMALL);           \
    else if (size_class == MEDIUM) body(MEDIUM);    \
    else body(LARGE)

SYNC_KERNEL(ntt_forward_columns, COLUMN_THREADS, NTT_BLOCKS, NttArgs) {
    __shared__ num shared[COLUMNS << LOG_ROWS];
#define BODY(CLASS) forward_columns<CLASS>(a, job, shared)
    BY_CLASS(BODY);
#undef BODY
}

SYNC_KERNEL(ntt_inverse_columns, COLUMN_THREADS, NTT_BLOCKS, NttArgs) {
    __shared__ num shared[COLUMNS << LOG_ROWS];
#define BODY(CLASS) inverse_columns<CLASS>(a, job, shared)
    BY_CLASS(BODY);
#undef BODY
}

SYNC_KERNEL(ntt_forward_rows, ROW_THREADS, NTT_BLOCKS, NttArgs) {
    __shared__ num shared[ROW_THREADS / 16 * ROW_PADDED];
#define BODY(CLASS) forward_rows<CLASS, false>(a, job, shared)
    BY_CLASS(BODY);
#undef BODY
}

SYNC_KERNEL(ntt_forward_rows_divide, ROW_THREADS, NTT_BLOCKS, NttArgs) {
    __shared__ num shared[ROW_THREADS / 16 * ROW_PADDED];
#define BODY(CLASS) forward_rows<CLASS, true>(a, job, shared)
    BY_CLASS(BODY);
#undef BODY
}

SYNC_KERNEL(ntt_inverse_rows, ROW_THREADS, NTT_BLOCKS, NttArgs) {
    __shared__ num shared[ROW_THREADS / 16 * ROW_PADDED];
#define BODY(CLASS) inverse_rows<CLASS>(a, job, shared)
    BY_CLASS(BODY);
#undef BODY
}
