//! Memory that hostile bytes make a decoder ask for: counted by the allocator of this test program.

#![allow(clippy::unwrap_used)]

use hetal_ckks::bytes::{self, HEADER_LEN, MAX_KEYS, ObjectKind};
use hetal_testkit::allocation::{CountingAllocator, peak_of};
use hetal_testkit::samples::{Samples, fix_checksums};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// One test, because two at a time would count each other's memory.
#[test]
fn bytes_cost_no_more_memory_than_the_objects_they_are() {
    let samples = Samples::new();
    key_sets_stream(&samples);
    hostile_bytes_cost_nothing(&samples);
    derivations_cost_a_few_keys();
}

/// A derivation takes a ring of its own, whose two pools have chunks of 32 MiB and 2 MiB to align
/// them. Everything fits there at this degree, whatever the bytes of the keys are.
fn derivations_cost_a_few_keys() {
    let samples = Samples::of_master_keys();
    let mut set = samples.of(ObjectKind::KeySet).to_vec();
    let good = peak_of(|| samples.derive(&set).unwrap());
    let at = set.len() - 2000;
    set[at..at + 9].copy_from_slice(&[7; 9]);
    fix_checksums(ObjectKind::KeySet, &mut set);
    let changed = peak_of(|| samples.derive(&set).unwrap());
    let most = 2 * (34 << 20);
    assert!(good.max(changed) < most, "{good} and {changed} of {most} bytes");
}

/// Besides the keys themselves, which are in the ring's pool, one limb of one of them is in memory.
fn key_sets_stream(samples: &Samples) {
    let (codec, set) = (samples.client.codec(), samples.of(ObjectKind::KeySet));
    let pool = samples.client.ring.pool_bytes();
    let mut keys = None;
    let reading = peak_of(|| keys = Some(bytes::read_key_set(&codec, &mut &*set).unwrap()));
    let writing = peak_of(|| bytes::write_key_set(&codec, &keys.unwrap(), &mut std::io::sink()).unwrap());
    assert_eq!(samples.client.ring.pool_bytes(), pool);
    assert!(reading.max(writing) < set.len() / 2, "{reading} to read and {writing} to write {} bytes", set.len());
}

fn hostile_bytes_cost_nothing(samples: &Samples) {
    // Small things: an error's text, a table's names. Below this nothing depends on what bytes
    // declare.
    const SMALL: usize = 4 << 10;
    for (kind, good) in &samples.bytes {
        samples.read(*kind, good).unwrap();
        for declared in [1 << 20, 1 << 40, u64::MAX] {
            let mut bytes = good.clone();
            bytes[16..24].copy_from_slice(&u64::to_le_bytes(declared));
            fix_checksums(*kind, &mut bytes);
            let peak = peak_of(|| assert!(samples.read(*kind, &bytes).is_err()));
            assert!(peak < SMALL, "a {kind} that declares {declared} bytes costs {peak}");
        }
        // All that comes is the header and the first fields: no polynomial is made that was not
        // sent, but for the one being read (from a pool that is there already) and a buffer for one
        // limb of it.
        let peak = peak_of(|| assert!(samples.read(*kind, &good[..HEADER_LEN + 120]).is_err()));
        assert!(peak < 3 * SMALL, "the beginning of a {kind} costs {peak}");
    }
    let mut set = samples.of(ObjectKind::KeySet).to_vec();
    for count in [MAX_KEYS as u64, MAX_KEYS as u64 + 1, u64::MAX / 16, u64::MAX] {
        set[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&count.to_le_bytes());
        let peak = peak_of(|| assert!(samples.read(ObjectKind::KeySet, &set).is_err()));
        assert!(peak < MAX_KEYS * 64, "a set that declares {count} keys costs {peak}");
    }
    let mut params = samples.of(ObjectKind::Params).to_vec();
    for field in 80..104 {
        params[field] = 0xff;
        let peak = peak_of(|| assert!(samples.read(ObjectKind::Params, &params).is_err()));
        assert!(peak < SMALL, "a parameter set with huge lists costs {peak}");
    }
}
