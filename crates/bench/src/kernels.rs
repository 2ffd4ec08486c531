//! Times every kernel of every instruction set on one limb of degree 65536, and the transform of
//! tfhe-ntt.

use hetal_ring::base_conversion::BaseConverter;
use hetal_ring::buffer::{Limb, Pool};
use hetal_ring::ntt::NttTable;
use hetal_ring::packed::{self, Packed};
use hetal_ring::{Isa, Modulus, automorphism, kernels, prime};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

const LOG_N: u32 = 16;
const SOURCES: usize = 7;
const TERMS: usize = 4;

/// A measurement.
struct Case<'a> {
    name: String,
    run: Box<dyn FnMut() + 'a>,
    best_us: f64,
}

/// Cases run in turns, so that a slow moment of the machine affects all alike. The minimum counts.
#[derive(Default)]
struct Cases<'a>(Vec<Case<'a>>);

impl<'a> Cases<'a> {
    fn add(&mut self, name: impl Into<String>, run: impl FnMut() + 'a) {
        self.0.push(Case { name: name.into(), run: Box::new(run), best_us: f64::INFINITY });
    }

    fn measure(mut self, repetitions: usize) -> Map<String, Value> {
        for _ in 0..repetitions {
            for case in &mut self.0 {
                case.best_us = case.best_us.min(second_run(&mut case.run));
            }
        }
        self.0.into_iter().map(|case| (case.name, json!((case.best_us * 100.0).round() / 100.0))).collect()
    }
}

fn random(pool: &Arc<Pool>, q: u64, salt: u64) -> Limb {
    let mut limb = pool.take();
    let mut state = salt.wrapping_mul(2) + 1;
    for x in limb.iter_mut() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *x = (state >> 11) % q;
    }
    limb
}

#[allow(clippy::expect_used)]
fn table(bits: u32) -> NttTable {
    NttTable::new(prime::ntt_primes_below(bits, LOG_N, 1)[0], LOG_N).expect("an NTT prime")
}

/// Microseconds for each limb (minimum of `repetitions`), and the ratio of our forward transform to
/// that of tfhe-ntt.
pub fn report(repetitions: usize) -> Value {
    let pool = Pool::new(1 << LOG_N);
    let transforms = transforms(&pool, repetitions);
    let time = |name: &str| transforms[name].as_f64().unwrap_or(f64::NAN);
    let reference = time("tfhe-ntt forward 50");
    let ratios: Map<_, _> = Isa::available()
        .iter()
        .map(|isa| {
            let ratio = time(&format!("{} forward 50", isa.name())) / reference;
            (isa.name().to_string(), json!((ratio * 1000.0).round() / 1000.0))
        })
        .collect();
    json!({
        "degree": 1 << LOG_N,
        "unit": "microseconds per limb, one thread",
        "forward_over_tfhe_ntt": ratios,
        "transforms": transforms,
        "kernels": pointwise(&pool, repetitions),
    })
}

fn transforms(pool: &Arc<Pool>, repetitions: usize) -> Map<String, Value> {
    let tables = [42, 50, 51].map(|bits| (bits, table(bits)));
    let q = tables[1].1.modulus().value();
    #[allow(clippy::expect_used)]
    let plan = tfhe_ntt::prime64::Plan::try_new(1 << LOG_N, q).expect("an NTT prime");
    let plan = &plan;
    let mut cases = Cases::default();
    for isa in Isa::available() {
        for (bits, table) in &tables {
            let q = table.modulus().value();
            let mut a = random(pool, q, 1);
            cases.add(format!("{} forward {bits}", isa.name()), move || table.forward(isa, &mut a));
            let mut a = random(pool, q, 2);
            cases.add(format!("{} inverse {bits}", isa.name()), move || table.inverse(isa, &mut a));
        }
    }
    let mut a = random(pool, q, 3);
    cases.add("tfhe-ntt forward 50", move || plan.fwd(&mut a));
    let mut a = random(pool, q, 4);
    cases.add("tfhe-ntt inverse 50", move || plan.inv(&mut a));
    cases.measure(repetitions)
}

/// The forward transforms of hetal and tfhe-ntt, of degree 65536 modulo a 50-bit prime.
pub struct ForwardPair {
    table: NttTable,
    plan: tfhe_ntt::prime64::Plan,
    ours: Limb,
    theirs: Limb,
}

impl ForwardPair {
    #[allow(clippy::expect_used)]
    pub fn new() -> Self {
        let (pool, table) = (Pool::new(1 << LOG_N), table(50));
        let q = table.modulus().value();
        let plan = tfhe_ntt::prime64::Plan::try_new(1 << LOG_N, q).expect("an NTT prime");
        Self { plan, ours: random(&pool, q, 1), theirs: random(&pool, q, 2), table }
    }

    /// Microseconds of both transforms: medians of alternating runs.
    pub fn measure(&mut self) -> (f64, f64) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..400 {
            ours.push(second_run(|| self.table.forward(Isa::detect(), &mut self.ours)));
            theirs.push(second_run(|| self.plan.fwd(&mut self.theirs)));
        }
        (median(&mut ours), median(&mut theirs))
    }
}

/// Microseconds of the second of two runs. The first one loads the caches.
fn second_run(mut run: impl FnMut()) -> f64 {
    run();
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6
}

/// The median; the upper one of an even number of values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn pointwise(pool: &Arc<Pool>, repetitions: usize) -> Map<String, Value> {
    let large: Vec<Modulus> =
        prime::ntt_primes_below(51, LOG_N, SOURCES).into_iter().filter_map(Modulus::new).collect();
    let m = *table(50).modulus();
    let limbs: Vec<Limb> = (0..12).map(|salt| random(pool, m.value(), salt)).collect();
    let slices: Vec<&[u64]> = limbs.iter().map(|l| &l[..]).collect();
    let words: Vec<Vec<u64>> = slices.iter().map(|limb| packed::pack(limb)).collect();
    let packed: Vec<Packed<'_>> = words.iter().map(|words| Packed::new(words)).collect();
    let converter = BaseConverter::new(&large);
    let targets: Vec<_> = [50, 42, 36, 50].iter().map(|&bits| converter.target(table(bits).modulus())).collect();
    let targets: Vec<_> = targets.iter().collect();
    let scaled: Vec<Limb> = (0..SOURCES).map(|i| random(pool, large[i].value(), i as u64)).collect();
    let scaled: Vec<&[u64]> = scaled.iter().map(|l| &l[..]).collect();
    let permutation = automorphism::Permutation::new(LOG_N, 5);

    let (slices, packed, permutation) = (&slices, &packed, &permutation);

    let mut cases = Cases::default();
    for isa in Isa::available() {
        let name = |kernel: &str| format!("{} {kernel}", isa.name());
        let (m, large) = (&m, &large);
        for (bits, q) in [(50, m), (51, &large[0])] {
            let (mut out0, mut out1) = (pool.take(), pool.take());
            cases.add(name(&format!("inner product of 4 digits and a key, {bits} bits")), move || {
                let (x, y0, y1) = (&slices[..TERMS], &packed[4..4 + TERMS], &packed[8..8 + TERMS]);
                kernels::dot_packed_pair_plus_into(isa, q, (&mut out0, &mut out1), x, y0, y1, [None, None]);
            });
        }
        let (converter, targets, scaled) = (&converter, &targets, &scaled);
        let mut limbs_out: Vec<Limb> = targets.iter().map(|_| pool.take()).collect();
        cases.add(name("convert 7 sources to 4 targets"), move || {
            let mut out: Vec<&mut [u64]> = limbs_out.iter_mut().map(|l| &mut l[..]).collect();
            converter.convert(isa, scaled, targets, &mut out);
        });
        let mut out = pool.take();
        cases.add(name("mul_into"), move || kernels::mul_into(isa, m, &mut out, slices[0], slices[1]));
        let mut out = pool.take();
        cases.add(name("permute_into"), move || kernels::permute_into(isa, &mut out, slices[0], &permutation.whole()));
        let mut a = limbs[0].clone();
        cases.add(name("add_combination_assign, 4 terms"), move || {
            kernels::add_combination_assign(isa, m, &mut a, &slices[1..5], &[1, 12345, 6789, 5]);
        });
        let mut a = limbs[0].clone();
        cases.add(name("add_assign"), move || kernels::add_assign(isa, m, &mut a, slices[1]));
        let mut a = limbs[0].clone();
        cases.add(name("mul_scalar_assign"), move || kernels::mul_scalar_assign(isa, m, &mut a, 12345));
    }
    let mut copy = pool.take();
    cases.add("memory copy", move || copy.copy_from_slice(slices[0]));
    cases.measure(repetitions)
}
