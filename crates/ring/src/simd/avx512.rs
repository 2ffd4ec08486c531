//! Eight doubles: AVX-512 F and DQ.

use super::{Integers52, ROUNDER, Simd};
use core::arch::x86_64::*;

/// The set.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY (all blocks): the caller of a `Simd` method promises the CPU features and valid pointers.
impl Simd for Avx512 {
    const LANES: usize = 8;
    const ONE_ROUNDING: bool = true;
    type F = __m512d;
    type U = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f64) -> __m512d {
        unsafe { _mm512_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> __m512d {
        unsafe { _mm512_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f64, x: __m512d) {
        unsafe { _mm512_storeu_pd(p, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512d, b: __m512d) -> __m512d {
        unsafe { _mm512_add_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512d, b: __m512d) -> __m512d {
        unsafe { _mm512_sub_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512d, b: __m512d) -> __m512d {
        unsafe { _mm512_mul_pd(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn mul_sub(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        unsafe { _mm512_fmsub_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn neg_mul_add(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        unsafe { _mm512_fnmadd_pd(a, b, c) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512d) -> __m512d {
        unsafe { _mm512_roundscale_pd::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn round_product(a: __m512d, b: __m512d) -> __m512d {
        // Shorter than the rounding instruction, which is two operations on many CPUs.
        unsafe {
            let rounder = Self::splat(ROUNDER);
            Self::sub(Self::mul_add(a, b, rounder), rounder)
        }
    }
    #[inline(always)]
    unsafe fn sub_above(a: __m512d, bound: __m512d, b: __m512d) -> __m512d {
        unsafe { _mm512_mask_sub_pd(a, _mm512_cmp_pd_mask::<_CMP_GT_OQ>(a, bound), a, b) }
    }
    #[inline(always)]
    unsafe fn if_negative(a: __m512d, yes: __m512d, no: __m512d) -> __m512d {
        unsafe { _mm512_mask_blend_pd(_mm512_movepi64_mask(_mm512_castpd_si512(a)), no, yes) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [__m512d; 8]) {
        unsafe {
            // Lane pair L of even[k] is column 2L of rows 2k and 2k + 1; of odd[k], column 2L + 1.
            let even = [
                _mm512_unpacklo_pd(rows[0], rows[1]),
                _mm512_unpacklo_pd(rows[2], rows[3]),
                _mm512_unpacklo_pd(rows[4], rows[5]),
                _mm512_unpacklo_pd(rows[6], rows[7]),
            ];
            let odd = [
                _mm512_unpackhi_pd(rows[0], rows[1]),
                _mm512_unpackhi_pd(rows[2], rows[3]),
                _mm512_unpackhi_pd(rows[4], rows[5]),
                _mm512_unpackhi_pd(rows[6], rows[7]),
            ];
            [rows[0], rows[2], rows[4], rows[6]] = transpose_pairs(even);
            [rows[1], rows[3], rows[5], rows[7]] = transpose_pairs(odd);
        }
    }

    #[inline(always)]
    unsafe fn splat_u(x: u64) -> __m512i {
        unsafe { _mm512_set1_epi64(x as i64) }
    }
    #[inline(always)]
    unsafe fn load_u(p: *const u64) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_u(p: *mut u64, x: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn add_u(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_u(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi64(a, b) }
    }
    #[inline(always)]
    unsafe fn xor_u(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or_u(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn and_u(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m512i, count: __m512i) -> __m512i {
        unsafe { _mm512_srlv_epi64(a, count) }
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m512i, count: __m512i) -> __m512i {
        unsafe { _mm512_sllv_epi64(a, count) }
    }
    #[inline(always)]
    unsafe fn min_wrapped(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_min_epu64(a, b) }
    }
    #[inline(always)]
    unsafe fn permute(a: __m512i, indices: &[u8; 8]) -> __m512i {
        unsafe { _mm512_permutexvar_epi64(_mm512_cvtepu8_epi64(_mm_loadl_epi64(indices.as_ptr().cast())), a) }
    }
    #[inline(always)]
    unsafe fn bits(a: __m512d) -> __m512i {
        unsafe { _mm512_castpd_si512(a) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: __m512i) -> __m512d {
        unsafe { _mm512_castsi512_pd(a) }
    }
}

// SAFETY (all blocks): as above; the caller's features include IFMA.
impl Integers52 for Avx512 {
    #[inline(always)]
    unsafe fn add_low(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_madd52lo_epu64(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn add_high(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_madd52hi_epu64(sum, a, b) }
    }
    #[inline(always)]
    unsafe fn above_52(a: __m512i) -> __m512i {
        unsafe { _mm512_srli_epi64::<52>(a) }
    }
    #[inline(always)]
    unsafe fn below_52(a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, Self::splat_u((1 << 52) - 1)) }
    }
}

/// Transposes a 4 by 4 square of lane pairs.
#[inline(always)]
unsafe fn transpose_pairs(rows: [__m512d; 4]) -> [__m512d; 4] {
    // 0x88 takes pairs 0 and 2 of each operand, 0xdd pairs 1 and 3.
    unsafe {
        let top_even = _mm512_shuffle_f64x2::<0x88>(rows[0], rows[1]);
        let top_odd = _mm512_shuffle_f64x2::<0xdd>(rows[0], rows[1]);
        let low_even = _mm512_shuffle_f64x2::<0x88>(rows[2], rows[3]);
        let low_odd = _mm512_shuffle_f64x2::<0xdd>(rows[2], rows[3]);
        [
            _mm512_shuffle_f64x2::<0x88>(top_even, low_even),
            _mm512_shuffle_f64x2::<0x88>(top_odd, low_odd),
            _mm512_shuffle_f64x2::<0xdd>(top_even, low_even),
            _mm512_shuffle_f64x2::<0xdd>(top_odd, low_odd),
        ]
    }
}
