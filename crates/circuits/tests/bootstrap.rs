//! Bootstrapping under real keys at toy sets.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::{Complex64, EvaluationKeys};
use hetal_testkit::{Client, complex_vector, max_error, mean_error};

#[test]
fn bootstraps_return_the_message_at_the_top_level() {
    let client = Client::new("insecure-toy11", 1);
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[0, 2]).unwrap();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
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
            println!("{name}, bound {bound}: max 2^{:.2}, mean 2^{:.2}", max.log2(), mean.log2());
            assert!(max < 2f64.powi(-21), "{name}, bound {bound}: max 2^{:.2}", max.log2());
            assert!(mean < 2f64.powi(-24), "{name}, bound {bound}: mean 2^{:.2}", mean.log2());
        }
    }
}
