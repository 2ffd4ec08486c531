// From centred scaled residues `y` modulo a few primes to residues modulo others:
// crates/ring/src/base_conversion.rs.

#define MAX_SOURCES 8
#define CONVERT_THREADS 256

// The source primes of one conversion, in a batch of them.
struct Group {
    u32 sources;
    u32 from;  // limb of the first `y`
    u32 first_target, targets;
    double inverses[MAX_SOURCES];
};

struct Target {
    num q, inverse;
    num hats[MAX_SOURCES];
    num minus_product;
    u32 to, shift;
};

struct ConvertArgs {
    const Group* groups;
    const Target* targets;
    const num* y;
    num* out;
};

// Targets are dealt to the blocks of a group (blockIdx.z of gridDim.z). `WIDE`: a source and a
// target have 51 bits; then there may be fewer sources than SOURCES, and zeros stand for the rest.
template <int SOURCES, bool WIDE>
__device__ __forceinline__ void convert_from(const ConvertArgs& a, const Group& group, const Target* shared) {
    const u32 i = 2 * (blockIdx.x * CONVERT_THREADS + threadIdx.x);
    num y[SOURCES][2];
    double v[2] = {0.0, 0.0};
#pragma unroll
    for (int k = 0; k < SOURCES; k++) {
        NumPair p = {0, 0};
        if (!WIDE || k < group.sources) p = *(const NumPair*)(a.y + (size_t)(group.from + k) * N + i);
        y[k][0] = p.x;
        y[k][1] = p.y;
    }
#pragma unroll
    for (int k = 0; k < SOURCES; k++) {
        const double inverse = group.inverses[k];
        v[0] = __fma_rn((double)y[k][0], inverse, v[0]);
        v[1] = __fma_rn((double)y[k][1], inverse, v[1]);
    }
    v[0] = rint(v[0]);
    v[1] = rint(v[1]);
    const num base = signed_base(WIDE);
    // Stores below could change what is behind a reference: the count is read once.
    const u32 targets = group.targets;
    for (u32 t = blockIdx.z; t < targets; t += gridDim.z) {
        const Target& target = shared[t];
        const Field f = field_of(target.q, target.inverse, target.shift);
        Sum sums[2];
#pragma unroll
        for (int k = 0; k < SOURCES; k++) {
            const num hat = target.hats[k];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (WIDE && k > 0 && k % 3 == 0) ease(f, sums[e]);
                if (k == 0) sums[e] = first_product(base, y[k][e], hat);
                else add_product(sums[e], y[k][e], hat);
            }
        }
        NumPair out;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            num x = sum_plus(f, sums[e], base, v[e], target.minus_product);
            if (e == 0) out.x = x;
            else out.y = x;
        }
        *(NumPair*)(a.out + (size_t)target.to * N + i) = out;
    }
}

// The constants of a group's targets, for all threads of a block.
__device__ __forceinline__ void load_targets(const ConvertArgs& a, const Group& group, Target* shared) {
    const u64* from = (const u64*)(a.targets + group.first_target);
    for (u32 k = threadIdx.x; k < group.targets * (sizeof(Target) / sizeof(u64)); k += CONVERT_THREADS)
        ((u64*)shared)[k] = from[k];
    __syncthreads();
}

SYNC_KERNEL(convert, CONVERT_THREADS, 4, ConvertArgs) {
    __shared__ Target shared[MAX_LIMBS];
    const Group& group = a.groups[blockIdx.y];
    load_targets(a, group, shared);
    switch (group.sources) {
        case 1: convert_from<1, false>(a, group, shared); break;
        case 2: convert_from<2, false>(a, group, shared); break;
        case 3: convert_from<3, false>(a, group, shared); break;
        case 4: convert_from<4, false>(a, group, shared); break;
        case 5: convert_from<5, false>(a, group, shared); break;
        case 6: convert_from<6, false>(a, group, shared); break;
        case 7: convert_from<7, false>(a, group, shared); break;
        default: convert_from<8, false>(a, group, shared);
    }
}

SYNC_KERNEL(convert_wide, CONVERT_THREADS, 4, ConvertArgs) {
    __shared__ Target shared[MAX_LIMBS];
    const Group& group = a.groups[blockIdx.y];
    load_targets(a, group, shared);
    convert_from<MAX_SOURCES, true>(a, group, shared);
}
