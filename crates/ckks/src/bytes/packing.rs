//! Residues in as many bits as their prime has.
//!
//! Residue `k` takes bits `k b .. (k + 1) b` of the limb's bytes, lowest first. Limbs are multiples
//! of eight residues, so they fill whole bytes, and a residue lies within the eight bytes from the
//! one it begins in (`b + 7 <= 64`).

use hetal_ring::Modulus;

/// Bytes after the packed ones that [`unpack_into`] may load, though their values do not matter.
pub(super) const PADDING: usize = 8;

/// Bytes of `n` packed residues; `n` is a multiple of 8.
pub(super) fn packed_len(q: &Modulus, n: usize) -> usize {
    n / 8 * q.bits() as usize
}

/// Calls `$constant::<BITS>` for the bit lengths of the built-in sets' primes, whose constant
/// shifts are several times as fast, and `$general` for others.
macro_rules! by_bits {
    ($q:expr, $constant:ident, $general:ident, $($arguments:expr),*) => {
        by_bits!(@ $q, $constant, $general, ($($arguments),*), 28 31 32 36 37 39 41 42 43 45 50 51)
    };
    (@ $q:expr, $constant:ident, $general:ident, $arguments:tt, $($bits:literal)*) => {
        match $q.bits() {
            $($bits => $constant::<$bits> $arguments,)*
            _ => $general $arguments,
        }
    };
}

/// Packs residues into exactly [`packed_len`] bytes.
pub(super) fn pack_into(q: &Modulus, residues: &[u64], out: &mut [u8]) {
    by_bits!(q, pack, pack_any, q, residues, out);
}

fn pack<const BITS: usize>(_q: &Modulus, residues: &[u64], out: &mut [u8]) {
    residues.chunks_exact(8).zip(out.chunks_exact_mut(BITS)).for_each(|(eight, bytes)| pack_eight(BITS, eight, bytes));
}

fn pack_any(q: &Modulus, residues: &[u64], out: &mut [u8]) {
    pack_bits(q.bits() as usize, residues, out);
}

/// Packs numbers of `bits` bits, eight into as many bytes.
pub(super) fn pack_bits(bits: usize, residues: &[u64], out: &mut [u8]) {
    residues.chunks_exact(8).zip(out.chunks_exact_mut(bits)).for_each(|(eight, bytes)| pack_eight(bits, eight, bytes));
}

/// Eight residues into as many bytes as they have bits.
#[inline(always)]
fn pack_eight(bits: usize, residues: &[u64], out: &mut [u8]) {
    let mut words = [0u64; 8];
    for (k, &x) in residues.iter().enumerate() {
        let (word, shift) = (k * bits / 64, k * bits % 64);
        words[word] |= x << shift;
        if shift + bits > 64 {
            words[word + 1] |= x >> (64 - shift);
        }
    }
    for (bytes, word) in out.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// Unpacks residues from [`packed_len`] bytes and [`PADDING`]; `Err` is the place of the first that
/// is not below `q`.
pub(super) fn unpack_into(q: &Modulus, packed: &[u8], residues: &mut [u64]) -> Result<(), usize> {
    let fits = by_bits!(q, unpack, unpack_any, q, packed, residues);
    if fits { Ok(()) } else { Err(residues.iter().position(|&x| x >= q.value()).unwrap_or(0)) }
}

fn unpack<const BITS: usize>(q: &Modulus, packed: &[u8], residues: &mut [u64]) -> bool {
    // Below zero, that is with the top bit set, for a residue that is too large.
    let mut margins = 0;
    for (block, eight) in residues.chunks_exact_mut(8).enumerate() {
        let bytes = &packed[block * BITS..][..BITS + PADDING];
        for (k, x) in eight.iter_mut().enumerate() {
            *x = field(bytes, k * BITS, BITS);
            margins |= (q.value() - 1).wrapping_sub(*x);
        }
    }
    margins >> 63 == 0
}

fn unpack_any(q: &Modulus, packed: &[u8], residues: &mut [u64]) -> bool {
    let bits = q.bits() as usize;
    residues.iter_mut().enumerate().for_each(|(k, x)| *x = field(packed, k * bits, bits));
    residues.iter().all(|&x| x < q.value())
}

/// The `bits` bits from bit `start`.
#[inline(always)]
pub(super) fn field(bytes: &[u8], start: usize, bits: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[start / 8..start / 8 + 8]);
    (u64::from_le_bytes(eight) >> (start % 8)) & (u64::MAX >> (64 - bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn modulus(bits: u32, low: u64) -> Modulus {
        Modulus::new((1 << (bits - 1)) | (low & ((1 << (bits - 1)) - 1)) | 1).unwrap()
    }

    fn packed(q: &Modulus, residues: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; packed_len(q, residues.len())];
        pack_into(q, residues, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn residues_survive_and_fields_are_where_the_format_says(
            bits in 2u32..=51, low: u64, seeds in proptest::collection::vec(any::<u64>(), 1..9), garbage: u8
        ) {
            let q = modulus(bits, low);
            let residues: Vec<u64> = seeds.iter().flat_map(|s| (0..8).map(|k| s.rotate_left(8 * k) % q.value())).collect();
            let mut bytes = packed(&q, &residues);
            for (k, &x) in residues.iter().enumerate() {
                for bit in 0..bits as usize {
                    let at = k * bits as usize + bit;
                    prop_assert_eq!(u64::from(bytes[at / 8] >> (at % 8) & 1), x >> bit & 1);
                }
            }
            bytes.extend([garbage; PADDING]);
            let mut back = vec![0; residues.len()];
            prop_assert_eq!(unpack_into(&q, &bytes, &mut back), Ok(()));
            prop_assert_eq!(back, residues);
        }

        #[test]
        fn a_number_that_is_no_residue_is_found(bits in 3u32..=51, low: u64, place in 0usize..64, above: u64) {
            let q = modulus(bits, low & !2);
            let top = (1u64 << bits) - 1;
            // The prime itself as often as anything above it.
            let bad = q.value() + (above >> 1) % (top - q.value() + 1) * (above & 1);
            let mut residues = vec![q.value() - 1; 64];
            residues[place] = bad;
            let mut bytes = packed(&q, &residues);
            bytes.extend([0; PADDING]);
            prop_assert_eq!(unpack_into(&q, &bytes, &mut vec![0; 64]), Err(place));
        }
    }
}
