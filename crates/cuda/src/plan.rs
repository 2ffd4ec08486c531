//! Constants of the ring, and the batches of transforms and conversions behind an operation, made
//! once for each shape.

use crate::device::Device;
use crate::ffi::arguments::{ConversionTarget, Group, Job, Prime, Word};
use crate::memory::DeviceTable;
use crate::source::{Arithmetic, Kernel, LOG_N, MAX_LIMBS, MAX_SOURCES};
use crate::{Error, Result};
use hetal_ring::{Basis, Modulus, ntt, prime};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The primes of a ring and their tables on the device.
pub(crate) struct RingTables {
    pub(crate) arithmetic: Arithmetic,
    pub(crate) log_n: u32,
    pub(crate) full: Basis,
    moduli: Vec<Modulus>,
    /// `psi^(N/2)` of each prime: the root of the one block of a transform's first stage.
    first_roots: Vec<u64>,
    pub(crate) primes: DeviceTable,
    pub(crate) roots: DeviceTable,
}

impl RingTables {
    pub(crate) fn new(device: &Arc<dyn Device>, log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        let unsupported = |reason: String| Error::Unsupported { reason };
        if !LOG_N.contains(&log_n) {
            return Err(unsupported(format!("log N = {log_n} is outside {LOG_N:?}")));
        }
        if q.is_empty() || q.len() + p.len() > MAX_LIMBS {
            return Err(unsupported(format!("{} primes; there may be 1 to {MAX_LIMBS}", q.len() + p.len())));
        }
        let found: Vec<(Modulus, u64)> = q
            .iter()
            .chain(p)
            .map(|&value| {
                let modulus = Modulus::new(value).filter(|m| m.bits() > 16);
                let root = modulus.and_then(|m| prime::primitive_root(&m, log_n).map(|psi| (m, psi)));
                root.ok_or_else(|| unsupported(format!("{value} is no prime of 17 to 51 bits that is 1 mod 2N")))
            })
            .collect::<Result<_>>()?;
        let arithmetic = device.arithmetic();
        let primes: Vec<Prime> = found.iter().map(|(m, _)| prime_constants(arithmetic, m)).collect();
        let roots: Vec<Word> = found.par_iter().flat_map_iter(|(m, psi)| roots(arithmetic, m, *psi, log_n)).collect();
        Ok(Self {
            arithmetic,
            log_n,
            full: Basis { q: q.len(), p: p.len() },
            first_roots: found.iter().map(|(m, psi)| m.pow(*psi, 1 << (log_n - 1))).collect(),
            moduli: found.iter().map(|(m, _)| *m).collect(),
            primes: DeviceTable::new(device, &primes)?,
            roots: DeviceTable::new(device, &roots)?,
        })
    }

    /// The number, in the full basis, of the prime of limb `i` of a polynomial over `q` primes of
    /// the chain.
    fn number(&self, q: usize, i: usize) -> usize {
        if i < q { i } else { i - q + self.full.q }
    }

    /// The prime of limb `i` of a polynomial in `basis`.
    pub(crate) fn modulus(&self, basis: Basis, i: usize) -> &Modulus {
        &self.moduli[self.number(basis.q, i)]
    }

    /// The product of the first `p` special primes modulo each prime of the chain, centred.
    pub(crate) fn special_products(&self, p: usize) -> Vec<Word> {
        let special = &self.moduli[self.full.q..self.full.q + p];
        self.moduli[..self.full.q].iter().map(|q| self.centred(q, product(q, special.iter()))).collect()
    }

    /// A residue as a number of the kernels, centred.
    pub(crate) fn centred(&self, m: &Modulus, x: u64) -> Word {
        self.arithmetic.word(m.center(x))
    }

    /// Batches of transforms of limbs of the given primes, in place, to measure.
    pub(crate) fn benchmark_jobs(
        &self,
        device: &Arc<dyn Device>,
        numbers: &[usize],
    ) -> Result<(DeviceTable, DeviceTable)> {
        let places = || numbers.iter().enumerate();
        let forward: Vec<Job> = places().map(|(i, &number)| forward_job(number, 0, i, i, 0)).collect();
        let inverse: Vec<Job> = places().map(|(i, &number)| self.inverse_job(number, 1, 0, i, i)).collect();
        Ok((DeviceTable::new(device, &forward)?, DeviceTable::new(device, &inverse)?))
    }

    /// An inverse transform times `scale`.
    fn inverse_job(&self, number: usize, scale: u64, group: usize, from: usize, to: usize) -> Job {
        let m = &self.moduli[number];
        let scale = m.mul(m.inv(1 << self.log_n), scale);
        Job {
            prime: number as u32,
            group: group as u32,
            from: from as u32,
            to: to as u32,
            scale: self.centred(m, scale),
            scaled_root: self.centred(m, m.mul(scale, self.first_roots[number])),
        }
    }
}

fn prime_constants(arithmetic: Arithmetic, m: &Modulus) -> Prime {
    let size_class = match m.bits() {
        _ if arithmetic == Arithmetic::Integer => 0,
        ..=47 => 0,
        48..=50 => 1,
        _ => 2,
    };
    let (q, inverse) = (arithmetic.word(m.value() as i64), arithmetic.inverse(m));
    Prime { q, inverse, value: m.value(), size_class, shift: shift(m) }
}

/// Bits that integers drop before they are divided by a prime.
fn shift(m: &Modulus) -> u32 {
    m.bits() - 2
}

/// The roots of one prime in the order of `kernels/ntt.cu`.
fn roots(arithmetic: Arithmetic, m: &Modulus, psi: u64, log_n: u32) -> Vec<Word> {
    let n = 1usize << log_n;
    let mut powers = vec![0; n];
    let mut power = 1;
    for k in 0..n {
        powers[ntt::bit_reverse(k, log_n)] = arithmetic.word(m.center(power));
        power = m.mul(power, psi);
    }
    let leaves = n / 16;
    let mut table = powers[..leaves].to_vec();
    for level in 0..4 {
        table.extend((0..leaves).map(|i| powers[(leaves + i) << level]));
    }
    table
}

fn product<'a>(modulus: &Modulus, factors: impl Iterator<Item = &'a Modulus>) -> u64 {
    factors.fold(1, |product, f| modulus.mul(product, f.value() % modulus.value()))
}

/// A batch of forward transforms.
pub(crate) struct Transforms {
    pub(crate) jobs: DeviceTable,
}

impl Transforms {
    /// Every limb of a polynomial, in its place.
    pub(crate) fn of_basis(constants: &RingTables, device: &Arc<dyn Device>, basis: Basis) -> Result<Self> {
        let jobs: Vec<Job> =
            (0..basis.limbs()).map(|i| forward_job(constants.number(basis.q, i), 0, i, i, 0)).collect();
        Ok(Self { jobs: DeviceTable::new(device, &jobs)? })
    }
}

fn forward_job(number: usize, group: usize, from: usize, to: usize, scale: Word) -> Job {
    Job { prime: number as u32, group: group as u32, from: from as u32, to: to as u32, scale, scaled_root: 0 }
}

/// Inverse transforms of source limbs, conversions of their coefficients to other primes, and
/// forward transforms there.
pub(crate) struct Conversion {
    pub(crate) inverse: DeviceTable,
    pub(crate) groups: DeviceTable,
    pub(crate) targets: DeviceTable,
    /// Blocks that the targets of a group are dealt to.
    pub(crate) deep: u32,
    /// Whether a source and a target have 51 bits.
    pub(crate) wide: bool,
    pub(crate) forward: DeviceTable,
    /// Limbs of the coefficients.
    pub(crate) y_limbs: usize,
}

/// The tables of a [`Conversion`] as they grow.
#[derive(Default)]
struct Builder {
    inverse: Vec<Job>,
    groups: Vec<Group>,
    targets: Vec<ConversionTarget>,
    forward: Vec<Job>,
    wide: bool,
}

impl Builder {
    /// A conversion from primes `sources` (numbers), limbs `from` and on of input `input`.
    fn group(&mut self, constants: &RingTables, sources: &[usize], input: usize, from: usize) {
        let moduli = &constants.moduli;
        let first = self.inverse.len();
        let mut inverses = [0.0; MAX_SOURCES];
        for (k, &number) in sources.iter().enumerate() {
            let m = &moduli[number];
            let hat = product(m, sources.iter().filter(|&&s| s != number).map(|&s| &moduli[s]));
            self.inverse.push(constants.inverse_job(number, m.inv(hat), input, from + k, first + k));
            inverses[k] = 1.0 / m.value() as f64;
        }
        self.groups.push(Group {
            sources: sources.len() as u32,
            from: first as u32,
            first_target: self.targets.len() as u32,
            targets: 0,
            inverses,
        });
    }

    /// One more target of the last group: prime `number`, at limb `to` of the work. Returns the
    /// inverse of the sources' product, centred.
    fn target(&mut self, constants: &RingTables, sources: &[usize], number: usize, to: usize) -> Word {
        let moduli = &constants.moduli;
        let t = &moduli[number];
        let mut hats = [0; MAX_SOURCES];
        for (hat, &source) in hats.iter_mut().zip(sources) {
            *hat = constants.centred(t, product(t, sources.iter().filter(|&&s| s != source).map(|&s| &moduli[s])));
            self.wide |= moduli[source].bits() + t.bits() > 101;
        }
        let all = product(t, sources.iter().map(|&s| &moduli[s]));
        let minus_product = constants.centred(t, t.neg(all));
        let (q, inverse) = (constants.arithmetic.word(t.value() as i64), constants.arithmetic.inverse(t));
        self.targets.push(ConversionTarget { q, inverse, hats, minus_product, to: to as u32, shift: shift(t) });
        if let Some(group) = self.groups.last_mut() {
            group.targets += 1;
        }
        constants.centred(t, t.inv(all))
    }

    fn build(self, constants: &RingTables, device: &Arc<dyn Device>) -> Result<Conversion> {
        let blocks = Kernel::Convert.shape(constants.log_n).1 * self.groups.len() as u32;
        let widest = self.groups.iter().map(|g| g.targets).max().unwrap_or(0);
        Ok(Conversion {
            y_limbs: self.inverse.len(),
            inverse: DeviceTable::new(device, &self.inverse)?,
            groups: DeviceTable::new(device, &self.groups)?,
            targets: DeviceTable::new(device, &self.targets)?,
            deep: depth(blocks, widest, device.blocks_at_once()),
            wide: self.wide,
            forward: DeviceTable::new(device, &self.forward)?,
        })
    }
}

/// To how many blocks to deal `targets` so that `blocks` times as many of them are done soonest,
/// `at_once` at a time.
fn depth(blocks: u32, targets: u32, at_once: u32) -> u32 {
    // A block's loads cost about as much as two targets.
    let cost = |deep: u32| (blocks * deep).div_ceil(at_once) * (targets.div_ceil(deep) + 2);
    (1..=targets.max(1)).min_by_key(|&deep| cost(deep)).unwrap_or(1)
}

impl Conversion {
    /// Digits `ranges` of a polynomial, each to the other primes of `basis`; digit `j`'s limb `i`
    /// is at `j * basis.limbs() + i` of the work.
    pub(crate) fn of_digits(
        constants: &RingTables,
        device: &Arc<dyn Device>,
        ranges: &[Range<usize>],
        basis: Basis,
    ) -> Result<Self> {
        let mut builder = Builder::default();
        for (j, range) in ranges.iter().enumerate() {
            let sources: Vec<usize> = range.clone().collect();
            builder.group(constants, &sources, 0, range.start);
            for i in (0..basis.limbs()).filter(|i| !range.contains(i)) {
                let (number, to) = (constants.number(basis.q, i), j * basis.limbs() + i);
                builder.target(constants, &sources, number, to);
                builder.forward.push(forward_job(number, 0, to, to, 0));
            }
        }
        builder.build(constants, device)
    }

    /// Division of `count` polynomials by the special primes and the last `drop_q` of the chain.
    /// Remainders of polynomial `g` are at `g * to + i` of the work, for the `to` limbs that are
    /// left.
    pub(crate) fn of_division(
        constants: &RingTables,
        device: &Arc<dyn Device>,
        from: Basis,
        drop_q: usize,
        count: usize,
    ) -> Result<Self> {
        let to = from.q - drop_q;
        let sources: Vec<usize> = (to..from.limbs()).map(|i| constants.number(from.q, i)).collect();
        let mut builder = Builder::default();
        for g in 0..count {
            builder.group(constants, &sources, g, to);
            for i in 0..to {
                let scale = builder.target(constants, &sources, i, g * to + i);
                builder.forward.push(forward_job(i, g, g * to + i, i, scale));
            }
        }
        builder.build(constants, device)
    }

    /// From the first prime to all others of `basis`, each at its place.
    pub(crate) fn of_raise(constants: &RingTables, device: &Arc<dyn Device>, basis: Basis) -> Result<Self> {
        let mut builder = Builder::default();
        builder.group(constants, &[0], 0, 0);
        for i in 1..basis.limbs() {
            let number = constants.number(basis.q, i);
            builder.target(constants, &[0], number, i);
            builder.forward.push(forward_job(number, 0, i, i, 0));
        }
        builder.build(constants, device)
    }
}
