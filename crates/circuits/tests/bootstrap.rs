//! Bootstrapping under real keys at toy sets.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_circuits::bootstrap::{self, BootstrapBounds};
use hetal_circuits::{Bootstrapper, Error, KeyPlan, encrypted};
use hetal_ckks::{Complex64, EvaluationKeys, KeyId, Params, ParamsLiteral};
use hetal_ring::{Isa, PackedPoly, prime};
use hetal_testkit::{TestOwner, complex_vector, max_error, mean_error};
use std::collections::BTreeSet;

const PLANS: [KeyPlan; 4] = [KeyPlan::Most, KeyPlan::Fast, KeyPlan::Balanced, KeyPlan::Small];

fn client_with(wanted: impl FnOnce(&TestOwner) -> Vec<(KeyId, usize)>) -> (TestOwner, EvaluationKeys<PackedPoly>) {
    let client = TestOwner::new("insecure-toy11", 1);
    let mut keys = EvaluationKeys::default();
    // One after the other: all keys of a client belong together, whenever they are made.
    wanted(&client).into_iter().for_each(|key| client.add_keys(&mut keys, [key]));
    (client, keys)
}

#[test]
fn bootstraps_return_the_message_at_the_top_level() {
    PLANS.into_iter().for_each(bootstraps_with);
}

fn bootstraps_with(plan: KeyPlan) {
    let (client, keys) = client_with(|client| bootstrap::keys_with_plan(&client.params, plan));
    let bootstrapper = Bootstrapper::with_plan(&client.evaluator, &[0, 2], plan).unwrap();
    let slots = client.params.slots();
    let constant = vec![Complex64::new(0.5, -0.25); slots];
    for (name, v) in [("random", complex_vector(slots, 9)), ("constant", constant)] {
        for log_bound in [0, 2] {
            let bound = f64::from(1 << log_bound);
            let v: Vec<Complex64> = v.iter().map(|z| z * bound).collect();
            let out = bootstrapper.bootstrap(&client.evaluator, &client.encrypt(&v, 0), log_bound, &keys).unwrap();
            assert_eq!(out.limbs, client.params.limbs(13));
            let got = client.decrypt(&out);
            let (max, mean) = (max_error(&got, &v) / bound, mean_error(&got, &v) / bound);
            println!("{plan:?}, {name}, bound {bound}: max 2^{:.2}, mean 2^{:.2}", max.log2(), mean.log2());
            assert!(max < 2f64.powi(-21), "{name}, bound {bound}: max 2^{:.2}", max.log2());
            assert!(mean < 2f64.powi(-24), "{name}, bound {bound}: mean 2^{:.2}", mean.log2());
        }
    }
}

/// A server derives most keys from the sparse secret, and bootstraps are as precise as with those
/// of the owner.
#[test]
fn derived_keys_bootstrap_as_well() {
    for plan in [KeyPlan::Balanced, KeyPlan::Small] {
        let (client, keys) = client_with_derived_keys(plan);
        let bootstrapper = Bootstrapper::with_plan(&client.evaluator, &[0], plan).unwrap();
        let v = complex_vector(client.params.slots(), 9);
        let out = bootstrapper.bootstrap(&client.evaluator, &client.encrypt(&v, 0), 0, &keys).unwrap();
        let got = client.decrypt(&out);
        let (max, mean) = (max_error(&got, &v), mean_error(&got, &v));
        println!("{plan:?}: max 2^{:.2}, mean 2^{:.2}", max.log2(), mean.log2());
        assert!(max < 2f64.powi(-21) && mean < 2f64.powi(-24), "{plan:?}: 2^{:.2}, 2^{:.2}", max.log2(), mean.log2());
    }
}

/// An owner with the keys that a server has of what was sent: all that it works with.
fn client_with_derived_keys(plan: KeyPlan) -> (TestOwner, EvaluationKeys<PackedPoly>) {
    let client = TestOwner::new("insecure-toy11", 1);
    let wanted = bootstrap::keys_with_plan(&client.params, plan);
    let sent = encrypted::sent_keys(&client.params, &wanted, plan);
    let of_sparse = |keys: &[(KeyId, usize)]| keys.iter().filter(|(id, _)| matches!(id, KeyId::FromSparse(_))).count();
    assert_eq!((of_sparse(&sent), of_sparse(&wanted)), (1, 4));
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, sent);
    client.derive_keys(&mut keys, &wanted);
    let mut derived: Vec<_> = keys.available().map(|(id, basis)| (id, basis.q)).collect();
    derived.sort_unstable();
    let mut wanted = wanted;
    wanted.sort_unstable();
    assert_eq!(derived, wanted);
    (client, keys)
}

/// Plans that derive keys, for every set that has master keys, at every degree.
#[test]
fn the_sent_keys_give_all_that_are_needed() {
    let full = Params::named("full").unwrap().literal().clone();
    for (log_n, plan) in (10..=17).flat_map(|log_n| PLANS.map(|plan| (log_n, plan))) {
        let literal = ParamsLiteral { name: "insecure-other".into(), log_n, ..full.clone() };
        let Ok(params) = Params::new(literal) else { continue };
        let wanted = bootstrap::keys_with_plan(&params, plan);
        let sent = encrypted::sent_keys(&params, &wanted, plan);
        if !plan.derives() {
            assert_eq!(sent, wanted);
            continue;
        }
        let ids = |keys: &[(KeyId, usize)]| keys.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>();
        let (mut reached, wanted) = (ids(&sent), ids(&wanted));
        let galois = |id: &KeyId| if let KeyId::FromSparse(g) = id { Some(*g) } else { None };
        let Some(KeyId::Master(step)) = reached.pop_last() else { panic!("no master key at 2^{log_n}") };
        let mut last = reached.iter().find_map(galois).unwrap();
        for _ in 1..wanted.iter().filter_map(galois).count() {
            last = last * step % (2 * params.degree() as u64);
            reached.insert(KeyId::FromSparse(last));
        }
        assert_eq!(reached, wanted, "2^{log_n}, {plan:?}");
    }
    let small = Params::named("small").unwrap();
    let wanted = bootstrap::keys_with_plan(&small, KeyPlan::Small);
    assert_eq!(encrypted::sent_keys(&small, &wanted, KeyPlan::Small), wanted, "`small` has no master keys");
}

/// The built-in sets have three matrices to slots. Others may have one, or one for each butterfly;
/// how far these are off is not known beforehand, so that they have no precise bootstrap.
#[test]
fn other_numbers_of_matrices_bootstrap_too() {
    let full = Params::named("full").unwrap().literal().clone();
    for (matrices, plan) in [1, 9].into_iter().flat_map(|count| [KeyPlan::Fast, KeyPlan::Small].map(|p| (count, p))) {
        let coeffs_to_slots = prime::ntt_primes_below(50, 10, matrices).into();
        let literal = ParamsLiteral { name: "insecure-other10".into(), log_n: 10, coeffs_to_slots, ..full.clone() };
        let client = TestOwner::of(Params::new(literal).unwrap(), 3, Isa::detect());
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, bootstrap::keys_with_plan(&client.params, plan));
        let bootstrapper = Bootstrapper::with_plan(&client.evaluator, &[0], plan).unwrap();
        let v = complex_vector(client.params.slots(), 9);
        let ct = client.encrypt(&v, 0);
        let out = bootstrapper.bootstrap(&client.evaluator, &ct, 0, &keys).unwrap();
        let error = max_error(&client.decrypt(&out), &v);
        println!("{matrices} matrices, {plan:?}: max 2^{:.2}", error.log2());
        assert!(error < 2f64.powi(-20), "{matrices} matrices: 2^{:.2}", error.log2());
        let refused = bootstrapper.bootstrap_precise(&client.evaluator, &ct, 0, &keys).err();
        assert_eq!(refused, Some(Error::NoPreciseBootstrap { set: "insecure-other10".into() }));
    }
}

/// The chain of `small` has other primes in every part, and no correction of the sine.
#[test]
fn the_chain_of_small_bootstraps_in_every_way() {
    let literal = Params::named("small").unwrap().literal().clone();
    let params = Params::new(ParamsLiteral { name: "insecure-small11".into(), log_n: 11, ..literal }).unwrap();
    let client = TestOwner::of(params, 2, Isa::detect());
    let (evaluator, slots) = (&client.evaluator, client.params.slots());
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
    let full = Bootstrapper::new(evaluator, &[0]).unwrap();
    let real = |z: &Complex64| Complex64::new(z.re, 0.0);
    let v = complex_vector(slots, 8);
    let u: Vec<Complex64> = v.iter().map(real).collect();
    let (a, b) = (client.encrypt(&v, 0), client.encrypt(&u, 0));
    let pair = full.bootstrap_pair(evaluator, (&b, &b), 0, &keys).unwrap();
    // The sine alone is off by theta^2/6 = 2^-15.3 at 1.
    for (name, ct, exact) in [
        ("complex", full.bootstrap(evaluator, &a, 0, &keys).unwrap(), &v),
        ("real", full.bootstrap_real(evaluator, &b, 0, &keys).unwrap(), &u),
        ("first", pair.0, &u),
        ("second", pair.1, &u),
    ] {
        assert_eq!(ct.limbs, client.params.limbs(5));
        let error = max_error(&client.decrypt(&ct), exact);
        println!("{name}: max 2^{:.2}", error.log2());
        assert!(error < 2f64.powf(-14.5), "{name}: 2^{:.2}", error.log2());
    }
    let precise = full.bootstrap_precise(evaluator, &a, 0, &keys).unwrap();
    assert_eq!(precise.limbs, client.params.limbs(4));
    let error = max_error(&client.decrypt(&precise), &v);
    assert!(error < 2f64.powi(-18), "precise: 2^{:.2}", error.log2());

    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::sparse_keys(&client.params, 64).unwrap());
    let sparse = Bootstrapper::sparse(evaluator, 64, &[0]).unwrap();
    let out = sparse.bootstrap(evaluator, &client.encrypt(&v[..64], 0), 0, &keys).unwrap();
    let repeated: Vec<Complex64> = v[..64].iter().copied().cycle().take(slots).collect();
    assert!(max_error(&client.decrypt(&out), &repeated) < 2f64.powf(-14.5));
}

#[test]
fn two_real_vectors_share_a_bootstrap() {
    let (client, keys) = client_with(|client| bootstrap::keys(&client.params));
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[1]).unwrap();
    let packed = complex_vector(client.params.slots(), 4);
    let real = |part: fn(&Complex64) -> f64| -> Vec<Complex64> {
        packed.iter().map(|z| Complex64::new(2.0 * part(z), 0.0)).collect()
    };
    let (u, v) = (real(|z| z.re), real(|z| z.im));
    let (a, b) = (client.encrypt(&u, 0), client.encrypt(&v, 0));
    let (a, b) = bootstrapper.bootstrap_pair(&client.evaluator, (&a, &b), 1, &keys).unwrap();
    for (ct, v) in [(a, u), (b, v)] {
        assert_eq!((ct.limbs, ct.scale), (client.params.limbs(13), client.params.scale(13)));
        assert!(max_error(&client.decrypt(&ct), &v) < 2f64.powi(-20));
    }
}

/// Vectors of real numbers that repeat, with every plan, after every number of slots: 16 and 128
/// are served by the same matrices, 1024 are all slots. Keys are those of any bootstrap.
#[test]
fn real_vectors_that_repeat_need_no_keys_of_their_own() {
    const PERIODS: [usize; 5] = [16, 128, 256, 512, 1024];
    for plan in PLANS {
        let (client, keys) = client_with(|client| bootstrap::keys_with_plan(&client.params, plan));
        let periodic = PERIODS.into_iter().flat_map(|period| [(period, 0), (period, 3)]).collect();
        let bounds = BootstrapBounds { periodic, ..BootstrapBounds::from(&[0, 3]) };
        let bootstrapper = Bootstrapper::with_plan(&client.evaluator, &bounds, plan).unwrap();
        let random = complex_vector(client.params.slots(), 12);
        for (period, log_bound) in PERIODS.into_iter().flat_map(|period| [(period, 0), (period, 3)]) {
            let bound = f64::from(1 << log_bound);
            let v: Vec<Complex64> = (0..random.len()).map(|i| (bound * random[i % period].re).into()).collect();
            let ct = client.encrypt(&v, 0);
            let evaluator = &client.evaluator;
            let whole = bootstrapper.bootstrap_real(evaluator, &ct, log_bound, &keys).unwrap();
            let out = bootstrapper.bootstrap_periodic(evaluator, &ct, period, log_bound, &keys).unwrap();
            assert_eq!((out.limbs, out.scale), (whole.limbs, whole.scale));
            let (got, as_whole) = (client.decrypt(&out), client.decrypt(&whole));
            let (mean, mean_whole) = (mean_error(&got, &v) / bound, mean_error(&as_whole, &v) / bound);
            let max = max_error(&got, &v) / bound;
            println!(
                "{plan:?}, {period} slots, bound {bound}: max 2^{:.2}, mean 2^{:.2}; 2^{:.2} of all slots",
                max.log2(),
                mean.log2(),
                mean_whole.log2()
            );
            assert!(max < 2f64.powi(-21) && mean < 1.1 * mean_whole, "{period} slots, bound {bound}");
        }
        let ct = client.encrypt(&random, 0);
        let refused =
            |period, log_bound| bootstrapper.bootstrap_periodic(&client.evaluator, &ct, period, log_bound, &keys).err();
        assert!(matches!(refused(100, 0), Some(Error::NoSparseBootstrap { .. })));
        assert!(matches!(refused(2048, 0), Some(Error::NoSparseBootstrap { .. })));
        assert!(matches!(refused(256, 1), Some(Error::NoSuchBound { .. })));
    }
    let (client, keys) = client_with(|client| bootstrap::keys(&client.params));
    let full = Bootstrapper::new(&client.evaluator, &[0]).unwrap();
    let ct = client.encrypt(&complex_vector(client.params.slots(), 1), 0);
    let refused = full.bootstrap_periodic(&client.evaluator, &ct, 256, 0, &keys).err();
    assert_eq!(refused, Some(Error::NoSuchPeriod { period: 256, prepared: Vec::new() }));
}

#[test]
fn a_precise_bootstrap_reaches_the_precision_of_the_scale() {
    let (client, keys) = client_with(|client| bootstrap::keys(&client.params));
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[0]).unwrap();
    let v = complex_vector(client.params.slots(), 5);
    let ct = client.encrypt(&v, 0);
    let out = bootstrapper.bootstrap_precise(&client.evaluator, &ct, 0, &keys).unwrap();
    assert_eq!((out.limbs, out.scale), (client.params.limbs(12), client.params.scale(12)));
    let (fresh, precise) = (max_error(&client.decrypt(&ct), &v), max_error(&client.decrypt(&out), &v));
    println!("fresh 2^{:.2}, precise 2^{:.2}", fresh.log2(), precise.log2());
    assert!(precise < 2f64.powi(-29), "2^{:.2}", precise.log2());
}

#[test]
fn vectors_that_repeat_have_a_cheaper_bootstrap() {
    // 64 slots need two of the three matrices and keep all levels, 512 need all and lose one.
    for (slots, level) in [(64, 13), (512, 12)] {
        let (client, keys) = client_with(|client| bootstrap::sparse_keys(&client.params, slots).unwrap());
        let bootstrapper = Bootstrapper::sparse(&client.evaluator, slots, &[0, 3]).unwrap();
        assert_eq!(bootstrapper.level(&client.params), level);
        for log_bound in [0, 3] {
            let bound = f64::from(1 << log_bound);
            let v: Vec<Complex64> = complex_vector(slots, 6).iter().map(|z| z * bound).collect();
            let ct = client.encrypt(&v, 0);
            let out = bootstrapper.bootstrap(&client.evaluator, &ct, log_bound, &keys).unwrap();
            assert_eq!((out.limbs, out.scale), (client.params.limbs(level), client.params.scale(level)));
            let everywhere: Vec<Complex64> = v.iter().copied().cycle().take(client.params.slots()).collect();
            let error = max_error(&client.decrypt(&out), &everywhere) / bound;
            println!("{slots} slots: max 2^{:.2}", error.log2());
            assert!(error < 2f64.powi(-22), "{slots} slots: max 2^{:.2}", error.log2());
        }
    }
    let (client, _) = client_with(|_| Vec::new());
    for slots in [8, 100, 1024] {
        let refused = Bootstrapper::sparse(&client.evaluator, slots, &[0]).err();
        assert!(matches!(refused, Some(Error::NoSparseBootstrap { .. })), "{slots}");
    }
}
