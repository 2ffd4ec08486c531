//! Four doubles: AVX2 with fused multiply-add.

use super::Simd;
use core::arch::x86_64::*;

/// The set.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

// SAFETY (all blocks): the caller of a `Simd` method promises the CPU features and valid pointers.
impl Simd for Avx2 {
    const LANES: usize = 4;
    const ONE_ROUNDING: bool = false;
    type F = __m256d;
    type U = __m256i;

    #[inline(always)]
    unsafe fn splat(x: f64) -> __m256d {
        unsafe { _mm256_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> __m256d {
        unsafe { _mm256_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, x: __m256d) {
        unsafe { _mm256_storeu_pd(p, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256d, b: __m256d) -> __m256d {
        unsafe { _mm256_add_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256d, b: __m256d) -> __m256d {
        unsafe { _mm256_sub_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256d, b: __m256d) -> __m256d {
        unsafe { _mm256_mul_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        unsafe { _mm256_fmadd_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn mul_sub(a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        unsafe { _mm256_fmsub_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn neg_mul_add(a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        unsafe { _mm256_fnmadd_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn round(a: __m256d) -> __m256d {
        unsafe { _mm256_round_pd::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn round_product(a: __m256d, b: __m256d) -> __m256d {
        // No copy of an operand and no third constant, of which there are but 16 registers.
        unsafe { Self::round(Self::mul(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub_above(a: __m256d, bound: __m256d, b: __m256d) -> __m256d {
        unsafe { _mm256_sub_pd(a, _mm256_and_pd(_mm256_cmp_pd::<_CMP_GT_OQ>(a, bound), b)) }
    }
    #[inline(always)]
    unsafe fn if_negative(a: __m256d, yes: __m256d, no: __m256d) -> __m256d {
        // Selects by the sign bit.
        unsafe { _mm256_blendv_pd(no, yes, a) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [__m256d; 8]) {
        unsafe {
            let even01 = _mm256_unpacklo_pd(rows[0], rows[1]);
            let odd01 = _mm256_unpackhi_pd(rows[0], rows[1]);
            let even23 = _mm256_unpacklo_pd(rows[2], rows[3]);
            let odd23 = _mm256_unpackhi_pd(rows[2], rows[3]);
            rows[0] = _mm256_permute2f128_pd::<0x20>(even01, even23);
            rows[1] = _mm256_permute2f128_pd::<0x20>(odd01, odd23);
            rows[2] = _mm256_permute2f128_pd::<0x31>(even01, even23);
            rows[3] = _mm256_permute2f128_pd::<0x31>(odd01, odd23);
        }
    }

    #[inline(always)]
    unsafe fn splat_u(x: u64) -> __m256i {
        unsafe { _mm256_set1_epi64x(x as i64) }
    }
    #[inline(always)]
    unsafe fn load_u(p: *const u64) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_u(p: *mut u64, x: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn add_u(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_u(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn xor_u(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or_u(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn and_u(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m256i, count: __m256i) -> __m256i {
        unsafe { _mm256_srlv_epi64(a, count) }
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m256i, count: __m256i) -> __m256i {
        unsafe { _mm256_sllv_epi64(a, count) }
    }
    #[inline(always)]
    unsafe fn min_wrapped(a: __m256i, b: __m256i) -> __m256i {
        // There is no unsigned minimum: `b` where the top bit of `a` is set.
        unsafe {
            let a = _mm256_castsi256_pd(a);
            _mm256_castpd_si256(_mm256_blendv_pd(a, _mm256_castsi256_pd(b), a))
        }
    }
    #[inline(always)]
    unsafe fn permute(a: __m256i, indices: &[u8; 8]) -> __m256i {
        unsafe { _mm256_permutevar8x32_epi32(a, _mm256_cvtepu8_epi32(_mm_loadl_epi64(indices.as_ptr().cast()))) }
    }
    #[inline(always)]
    unsafe fn bits(a: __m256d) -> __m256i {
        unsafe { _mm256_castpd_si256(a) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: __m256i) -> __m256d {
        unsafe { _mm256_castsi256_pd(a) }
    }
}
