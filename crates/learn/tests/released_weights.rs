//! Li and Micciancio's key recovery after a training: it works on raw weights and not on released
//! ones.
#![allow(clippy::unwrap_used)]

use hetal_circuits::clear::Noise;
use hetal_circuits::{Bootstrapper, Encrypted, encrypted};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys};
use hetal_keys::{Private, Release, ReleasePolicy};
use hetal_learn::rehearsal::{PieceSlots, Rehearsal, distance};
use hetal_learn::{Agreement, AgreementLimits, Circuit, EncryptedPiece, LevelPlan, Matrix, Verdict, packing};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Basis, Poly};
use hetal_testkit::TestOwner;

const SET: &str = "insecure-toy11";
const CLASSES: usize = 3;
const FEATURES: usize = 12;
/// Bits of security and models of a key: the defaults of `hetal model export` (`ReleaseLimits` of
/// `hetal_client::model::export`), and those of earlier versions, whose several releases have a
/// mean with less noise.
const LIMITS: [(u32, u64); 2] = [(15, 1), (10, 4)];

/// What someone learns about the secret who knows a ciphertext and its slots: `(m + e - c0) / c1`
/// modulo `q0`, as centred coefficients.
fn recovered(client: &TestOwner, ct: &Ciphertext<Poly>, slots: &[Complex64]) -> Vec<i64> {
    let ring = &client.ring;
    let basis = Basis { q: 1, p: 0 };
    let coefficients = client.evaluator.encoder().encode(slots, ct.scale).unwrap();
    let mut s = ring.lift(basis, &coefficients);
    ring.sub_assign(&mut s, &ring.copy_truncated(&ct.c0, basis));
    let q = *ring.modulus(basis, 0);
    for (x, &c1) in s.limbs_mut()[0].iter_mut().zip(ct.c1.limbs()[0].iter()) {
        *x = q.mul(*x, q.inv(c1));
    }
    ring.inverse(&mut s);
    s.limbs()[0].iter().map(|&x| q.center(x)).collect()
}

fn is_the_secret(s: &[i64]) -> bool {
    s.iter().all(|x| x.abs() <= 1)
}

/// The slots of the weights' ciphertext with other weights. The attacker gets the unused slots for
/// nothing, which no published model contains.
fn with_weights(circuit: &Circuit, raw: &[Complex64], weights: &Matrix, released: &Matrix) -> Vec<Complex64> {
    let g = circuit.geometry();
    let (old, new) = (packing::weights(g, weights).unwrap(), packing::weights(g, released).unwrap());
    raw.iter().zip(old[0].iter().zip(&new[0])).map(|(raw, (old, new))| raw - old + new).collect()
}

#[test]
fn raw_weights_give_the_key_away_and_released_ones_do_not() {
    let client = TestOwner::new(SET, 3);
    let agreement = Agreement { batch: 64, ..AgreementLimits::default().defaults };
    let circuit = Circuit::new(client.params.slots(), agreement.batch, FEATURES, CLASSES, agreement.range).unwrap();
    let g = circuit.geometry();
    let labels: Vec<usize> = (0..60).map(|i| (i * 7 + i / 4) % CLASSES).collect();
    let value =
        |i: usize, h: usize| ((i * 31 + h * 17) % 23) as f64 / 50.0 + f64::from(u8::from(h % CLASSES == labels[i]));
    let pieces: Vec<PieceSlots> = vec![EncryptedPiece {
        features: packing::features(g, &Matrix::from_fn(60, FEATURES, value)).unwrap(),
        labels: packing::labels(g, &labels).unwrap(),
        row_weights: None,
        rows: 60,
    }];
    let verdicts = [Verdict::Continue; 4];
    let rehearsal =
        Rehearsal { circuit: &circuit, agreement: &agreement, pieces: &pieces, verdicts: &verdicts, check: 4 };

    let needs = circuit.keys(client.params.top_level()).unwrap();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, encrypted::keys(&client.params, &needs));
    let bootstrapper = Bootstrapper::new(&client.evaluator, Circuit::bounds(&needs, 0.0)).unwrap();
    let engine = Encrypted::new(TestOwner::new(SET, 3).evaluator, keys, bootstrapper);
    let encrypt = |values: &[Complex64], level: usize| -> hetal_learn::Result<_> {
        Ok(engine.import(client.encrypt(values, level)).unwrap())
    };
    let parts = rehearsal.run(&engine, &encrypt).unwrap();
    let ct = parts[0].inner();
    let raw = client.decrypt(ct);
    let weights = packing::unpack_weights(g, &[&raw]).unwrap();

    let exact = rehearsal.weights(client.params.top_level(), Noise::default()).unwrap();
    let noise = distance(&rehearsal.unpacked(&[&raw]).unwrap(), &exact).unwrap();
    let estimate = rehearsal.estimate(client.params.top_level(), Noise::measured(SET).unwrap(), &|| ()).unwrap();
    println!("noise {noise:.2e}, bound {:.2e} from {estimate:?}", estimate.bound());
    assert!(noise < estimate.bound() && estimate.bound() < 32.0 * noise, "{noise:e} {estimate:?}");

    // Without flooding.
    assert_eq!(parts.len(), 1);
    assert!(is_the_secret(&recovered(&client, ct, &raw)), "the attack finds the secret in raw weights");
    let same = with_weights(&circuit, &raw, &weights, &weights);
    assert!(is_the_secret(&recovered(&client, ct, &same)));

    // With flooding: one release, and the mean of all releases of the budget.
    let recover = |released: &Matrix| recovered(&client, ct, &with_weights(&circuit, &raw, &weights, released));
    for (security, models) in LIMITS {
        let releases = releases_of(&weights, estimate.bound(), security, models);
        assert!(!is_the_secret(&recover(&releases[0])), "security {security}");
        let mean = |k, h| releases.iter().map(|released| released[(k, h)]).sum::<f64>() / models as f64;
        let s = recover(&Matrix::from_fn(weights.rows(), weights.columns(), mean));
        let small = s.iter().filter(|x| x.abs() <= 1).count();
        let all = s.len();
        assert!(small < 8, "security {security}: {small} of {all} coefficients are small: chance gives none");
    }
    assert!(LevelPlan::lowest() == circuit.level_plan());
}

/// All releases of a budget for some models of the same weights.
fn releases_of(weights: &Matrix, bound: f64, security: u32, models: u64) -> Vec<Matrix> {
    let each = weights.values().len() as u64;
    let noise = bound / (each as f64).sqrt();
    let policy = ReleasePolicy { noise, numbers: models * each, security, error: f64::INFINITY };
    let mut release = Release::new(policy).unwrap();
    let seeds = &mut TestSeeds::insecure(4);
    let mut publish = |_| {
        let values = release.publish(&Private::new(weights.values().to_vec()), seeds).unwrap();
        Matrix::new(weights.rows(), weights.columns(), values).unwrap()
    };
    let releases = (0..models).map(&mut publish).collect();
    assert_eq!(release.left(), 0);
    releases
}
