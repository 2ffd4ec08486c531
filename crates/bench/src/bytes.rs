//! Times writing and reading the largest switching key of the set `full`.

use hetal_ckks::bytes::Codec;
use hetal_ckks::{EvaluationKeys, KeyId, SwitchingKey};
use hetal_ring::{PackedPoly, RnsRing};
use hetal_testkit::TestOwner;
use serde_json::{Value, json};
use std::time::Instant;

/// Milliseconds (minimum of `repetitions`) and GB per second, with one thread and with two.
#[allow(clippy::expect_used)]
pub fn report(repetitions: usize) -> Value {
    let client = TestOwner::new("full", 1);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::Galois(5), client.params.chain().len())]);
    let key = keys.iter().next().expect("one key");
    let codec = client.codec();
    let bytes = codec.encode(&**key).expect("a key");
    let per_thread = [1, 2].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let timed = pool.install(|| (0..repetitions).map(|_| once(&codec, key, &bytes)).collect::<Vec<_>>());
        let least = |pick: fn(&(f64, f64)) -> f64| timed.iter().map(pick).fold(f64::INFINITY, f64::min);
        let (write, read) = (least(|t| t.0), least(|t| t.1));
        let rate = |seconds: f64| bytes.len() as f64 / 1e9 / seconds;
        json!({
            "threads": threads,
            "write_ms": write * 1e3, "write_gb_per_s": rate(write),
            "read_ms": read * 1e3, "read_gb_per_s": rate(read),
        })
    });
    json!({ "key_bytes": bytes.len(), "key_limbs": 2 * key.digits.len() * key.basis.limbs(), "runs": per_thread })
}

/// Seconds to write and to read.
#[allow(clippy::expect_used)]
fn once(codec: &Codec<RnsRing>, key: &SwitchingKey<PackedPoly>, bytes: &[u8]) -> (f64, f64) {
    let start = Instant::now();
    codec.write(key, &mut std::io::sink()).expect("a key");
    let write = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let back: SwitchingKey<PackedPoly> = codec.decode(bytes).expect("its bytes");
    let read = start.elapsed().as_secs_f64();
    drop(back);
    (write, read)
}
