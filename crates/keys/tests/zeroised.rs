//! Memory is given back without the secret in it: an allocator looks at every block that is freed.
#![allow(clippy::unwrap_used)]

use hetal_ckks::{Complex64, Params};
use hetal_keys::{Decryptor, Encryptor, Ephemeral, KeyGenerator, Passphrase, Private, SecretKey};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Basis, Isa, RnsRing};
use hetal_testkit::TempDir;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A value like no other.
const CANARY: f64 = 1_234.567_890_123;

/// Frees through the system's allocator, after a look.
struct Watching;

static ARMED: AtomicBool = AtomicBool::new(false);
static LEAKS: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static PATTERNS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

// SAFETY: every call is handed on to the system's allocator as it is; blocks are only read, while they are still owned.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            FREED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the block is whole and initialised (alloc zeroes it), and no one else has it any more.
            look(unsafe { std::slice::from_raw_parts(block, layout.size()) });
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

fn look(bytes: &[u8]) {
    let Some(patterns) = PATTERNS.get() else { return };
    let found = |pattern: &Vec<u8>| bytes.windows(pattern.len()).any(|window| window == &pattern[..]);
    if patterns.iter().any(found) {
        LEAKS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// A stretch of the secret, as coefficients, as the file has them, and as whole numbers.
fn patterns(packed: &[u8]) -> Vec<Vec<u8>> {
    let part = &packed[40..72];
    let coefficients: Vec<i8> =
        part.iter().flat_map(|&byte| (0..4).map(move |k| ((byte >> (2 * k)) << 6).cast_signed() >> 6)).collect();
    let short = coefficients.iter().map(|&c| c as u8).collect();
    let wide = coefficients.iter().flat_map(|&c| i64::from(c).to_le_bytes()).collect();
    vec![part.to_vec(), short, wide, [CANARY.to_le_bytes(); 2].concat()]
}

/// Everything an owner does with a secret.
fn use_secret(params: &Arc<Params>, folder: &TempDir, round: usize) {
    let ring = Arc::new(RnsRing::new(params.log_n(), params.chain(), params.special(), Isa::detect()).unwrap());
    let mut seeds = TestSeeds::insecure(77);
    let secret = SecretKey::generate(params, &mut seeds);
    let (plain, locked) = (folder.path().join(format!("plain{round}")), folder.path().join(format!("locked{round}")));
    let passphrase = Passphrase::new("words".to_owned().into()).unwrap();
    secret.save(params, &plain, None).unwrap();
    secret.save(params, &locked, Some(&passphrase)).unwrap();
    drop(secret);
    let secret = SecretKey::load(params, &plain, None).unwrap();
    let again = SecretKey::load(params, &locked, Some(&passphrase)).unwrap();
    assert_eq!(secret.id(), again.id());
    let generator = KeyGenerator::new(Arc::clone(params), Arc::clone(&ring));
    drop(generator.relinearisation(&secret, 3, &mut seeds).unwrap());
    drop(generator.galois(&secret, 5, 3, &mut seeds).unwrap());
    let ephemeral = Ephemeral::new(params, &mut seeds);
    drop(generator.to_sparse(&secret, &ephemeral, &mut seeds).unwrap());
    drop(generator.from_sparse(&secret, &ephemeral, 5, &mut seeds).unwrap());
    let evaluator = hetal_ckks::Evaluator::new(Arc::clone(params), Arc::clone(&ring));
    let values = vec![Complex64::ONE; params.slots()];
    let encoded = evaluator.encode(&values, params.scale(1), Basis { q: params.limbs(1), p: 0 }).unwrap();
    let encryptor = Encryptor::new(Arc::clone(params), Arc::clone(&ring));
    let ct = encryptor.encrypt(&secret, &encoded, &mut seeds);
    let opened = Decryptor::new(Arc::clone(params), ring).decrypt(&secret, &ct).unwrap();
    assert!((opened.peek()[0] - Complex64::ONE).norm() < 1e-3);
}

#[test]
fn freed_memory_holds_no_secret() {
    let params = Arc::new(Params::named("insecure-toy11").unwrap());
    let folder = TempDir::new();
    // The same seeds give the same secret: what to look for is known before it is made again.
    use_secret(&params, &folder, 0);
    let file = std::fs::read(folder.path().join("plain0")).unwrap();
    PATTERNS.set(patterns(&file[56..56 + params.degree() / 4])).unwrap();
    ARMED.store(true, Ordering::Relaxed);
    use_secret(&params, &folder, 1);
    // A decrypted value that is not exposed is wiped.
    drop(Private::new(vec![CANARY; 4]));
    drop(Private::new(vec![Complex64::new(CANARY, CANARY); 4]));
    ARMED.store(false, Ordering::Relaxed);
    assert!(FREED.load(Ordering::Relaxed) > 100);
    assert_eq!(LEAKS.load(Ordering::Relaxed), 0, "blocks were freed with the secret in them");
    // The watch is awake: a copy that is simply dropped is seen.
    ARMED.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(PATTERNS.get().unwrap()[1].clone()));
    ARMED.store(false, Ordering::Relaxed);
    assert_eq!(LEAKS.load(Ordering::Relaxed), 1);
}
