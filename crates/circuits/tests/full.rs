//! One bootstrap at full security. Alone in its file: it needs 10 GiB, and files of tests run one
//! after the other.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::EvaluationKeys;
use hetal_testkit::{TestOwner, complex_vector, max_error, mean_error};

#[test]
fn a_bootstrap_at_full_security_keeps_its_precision() {
    let client = TestOwner::new("full", 1);
    assert!(client.params.security().bits() >= 128.0);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[0]).unwrap();
    let v = complex_vector(client.params.slots(), 3);
    let out = bootstrapper.bootstrap(&client.evaluator, &client.encrypt(&v, 0), 0, &keys).unwrap();
    assert_eq!(out.limbs, client.params.limbs(13));
    let got = client.decrypt(&out);
    let (mean, max) = (mean_error(&got, &v).log2(), max_error(&got, &v).log2());
    println!("mean 2^{mean:.2}, max 2^{max:.2}");
    assert!(mean <= -23.5, "mean 2^{mean:.2}");
    assert!(max <= -20.0, "max 2^{max:.2}");
}
