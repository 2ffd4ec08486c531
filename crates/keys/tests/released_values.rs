//! Li and Micciancio's key recovery: it works on raw decryptions and not on released ones.

#![allow(clippy::unwrap_used)]

use hetal_ckks::{Ciphertext, Complex64};
use hetal_keys::{Decryptor, Private, Release, ReleasePolicy, estimate_noise};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Basis, Poly};
use hetal_testkit::{TestOwner, complex_vector};
use std::sync::Arc;

/// What someone learns about the secret who sees a ciphertext and its published slots:
/// `(m + e - c0) / c1` modulo `q0`, as centred coefficients. He knows nothing that the server does
/// not.
fn recovered(client: &TestOwner, ct: &Ciphertext<Poly>, published: &[Complex64]) -> Vec<i64> {
    let ring = &client.ring;
    let basis = Basis { q: 1, p: 0 };
    let coefficients = client.evaluator.encoder().encode(published, ct.scale).unwrap();
    let mut s = ring.lift(basis, &coefficients);
    ring.sub_assign(&mut s, &ring.copy_truncated(&ct.c0, basis));
    let q = *ring.modulus(basis, 0);
    for (x, &c1) in s.limbs_mut()[0].iter_mut().zip(ct.c1.limbs()[0].iter()) {
        *x = q.mul(*x, q.inv(c1));
    }
    ring.inverse(&mut s);
    s.limbs()[0].iter().map(|&x| q.center(x)).collect()
}

fn weight_if_ternary(s: &[i64]) -> Option<usize> {
    s.iter().all(|&x| x.abs() <= 1).then(|| s.iter().filter(|&&x| x != 0).count())
}

#[test]
fn a_published_raw_decryption_gives_the_key_away_and_a_released_one_does_not() {
    let client = TestOwner::new("insecure-toy11", 1);
    let decryptor = Decryptor::new(Arc::clone(&client.params), Arc::clone(&client.ring));
    let values = complex_vector(client.params.slots(), 1);
    let ct = client.encrypt(&values, 3);
    let decrypted = decryptor.decrypt(&client.secret, &ct).unwrap();

    let s = recovered(&client, &ct, decrypted.peek());
    assert_eq!(weight_if_ternary(&s), Some(512), "the attack finds the secret");
    let stolen = open_with(&client, &s, &client.encrypt(&vec![Complex64::I; 1024], 0));
    assert!(stolen.iter().all(|z| (z - Complex64::I).norm() < 1e-6), "and reads other ciphertexts with it");

    let noise = estimate_noise(&decrypted, &values).unwrap();
    let policy = ReleasePolicy { noise, numbers: 2048, security: 10, error: 1e-2 };
    let mut release = Release::new(policy).unwrap();
    let parts = |pick: fn(&Complex64) -> f64| Private::new(decrypted.peek().iter().map(pick).collect::<Vec<f64>>());
    let seeds = &mut TestSeeds::insecure(2);
    let re = release.publish(&parts(|z| z.re), seeds).unwrap();
    let im = release.publish(&parts(|z| z.im), seeds).unwrap();
    let released: Vec<_> = re.iter().zip(&im).map(|(&re, &im)| Complex64::new(re, im)).collect();
    let largest = released.iter().zip(&values).map(|(a, b)| (a - b).norm()).fold(0.0, f64::max);
    assert!(largest < 7.0 * release.sigma(), "released values are still of use: {largest:e}");

    let s = recovered(&client, &ct, &released);
    let small = s.iter().filter(|x| x.abs() <= 1).count();
    assert!(small < 5, "the attack finds {small} of 2048 coefficients small: chance gives none");
}

/// Rounding alone would tell the sign of the noise of values that lie between two multiples, and an
/// adversary chooses such. Here the noise is even some ten times what the policy says, so that the
/// first rounding does not hide it.
#[test]
fn released_values_do_not_tell_the_sign_of_the_noise() {
    let client = TestOwner::new("insecure-toy11", 3);
    let decryptor = Decryptor::new(Arc::clone(&client.params), Arc::clone(&client.ring));
    let mut release = Release::new(ReleasePolicy { noise: 1e-11, numbers: 2048, security: 8, error: 1e-2 }).unwrap();
    let between = |k: usize| (k as f64 + 0.5) * release.precision();
    let chosen: Vec<_> = (0..1024).map(|k| Complex64::new(between(k), between(1024 + k))).collect();
    let decrypted = decryptor.decrypt(&client.secret, &client.encrypt(&chosen, 3)).unwrap();
    let flat = |v: &[Complex64]| v.iter().flat_map(|z| [z.re, z.im]).collect::<Vec<f64>>();
    let (exact, noisy) = (flat(&chosen), flat(decrypted.peek()));
    let noise = noisy.iter().zip(&exact).map(|(x, m)| (x - m).abs()).fold(0.0, f64::max);
    assert!((5e-11..5e-10).contains(&noise), "{noise:e}");
    let released = release.publish(&Private::new(noisy.clone()), &mut TestSeeds::insecure(4)).unwrap();
    let agrees = |i: &usize| (released[*i] > exact[*i]) == (noisy[*i] > exact[*i]);
    let agreeing = (0..2048).filter(agrees).count();
    // Half of them, within five standard deviations of a fair coin.
    assert!(agreeing.abs_diff(1024) < 114, "{agreeing} of 2048 released values err to the side of the noise");
}

/// Decrypts with a stolen key, in one limb.
fn open_with(client: &TestOwner, s: &[i64], ct: &Ciphertext<Poly>) -> Vec<Complex64> {
    let ring = &client.ring;
    let basis = Basis { q: 1, p: 0 };
    let mut m = ring.mul(&ct.c1, &ring.lift(basis, s), basis);
    ring.add_assign(&mut m, &ct.c0);
    ring.inverse(&mut m);
    let q = *ring.modulus(basis, 0);
    let coefficients: Vec<f64> = m.limbs()[0].iter().map(|&x| q.center(x) as f64 / ct.scale).collect();
    client.evaluator.encoder().decode(&coefficients, client.params.slots()).unwrap()
}
