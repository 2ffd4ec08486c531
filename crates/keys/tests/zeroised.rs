//! Memory is given back without the secret in it: an allocator looks at every block that is freed.
#![allow(clippy::unwrap_used)]

use hetal_ckks::{Complex64, Params};
use hetal_keys::{
    Decryptor, Encryptor, EphemeralSecret, Error, KeyGenerator, Passphrase, Private, SecretKey, locked_file,
};
use hetal_ring::sampler::{self, SeedSource, TestSeeds};
use hetal_ring::{Basis, RnsRing, automorphism};
use hetal_testkit::TempDir;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A value like no other.
const CANARY: f64 = 1_234.567_890_123;

/// The label of the seeds that the ephemeral secret is drawn with.
const EPHEMERAL: u64 = 78;
/// The automorphism that keys are made for.
const GALOIS: u64 = 5;

/// Frees through the system's allocator, after a look.
struct Watching;

static ARMED: AtomicBool = AtomicBool::new(false);
/// Whether blocks as large as those of Argon2 are refused.
static FULL: AtomicBool = AtomicBool::new(false);
const LARGE: usize = 32 << 20;
static LEAKS: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static PATTERNS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

// SAFETY: every call is handed on to the system's allocator as it is; blocks are only read, while
// they are still owned.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if FULL.load(Ordering::Relaxed) && layout.size() > LARGE {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            FREED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the block is whole and initialised (alloc zeroes it), and no one else has it
            // any more.
            look(unsafe { std::slice::from_raw_parts(block, layout.size()) });
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

fn look(bytes: &[u8]) {
    let Some(patterns) = PATTERNS.get() else { return };
    let found = |pattern: &Vec<u8>| {
        bytes.windows(pattern.len()).any(|window| window.first() == pattern.first() && window == &pattern[..])
    };
    if patterns.iter().any(found) {
        LEAKS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Coefficients as the file has them, four a byte.
fn unpacked(packed: &[u8]) -> Vec<i8> {
    packed.iter().flat_map(|&byte| (0..4).map(move |k| ((byte >> (2 * k)) << 6).cast_signed() >> 6)).collect()
}

/// The forms in which a secret lies in memory: its coefficients, as they are and as whole numbers,
/// and its transform modulo `q0`.
fn forms(ring: &RnsRing, coefficients: &[i8]) -> [Vec<u8>; 3] {
    let others = |stretch: &&[i8]| stretch.iter().filter(|&&c| c != 0).count();
    // A sparse secret is mostly zeros, which are everywhere: its fullest stretch is like no other.
    let stretch = coefficients.windows(128).filter(|stretch| stretch[0] != 0).max_by_key(others).unwrap();
    assert!(others(&stretch) > 3);
    let wide: Vec<i64> = coefficients.iter().map(|&c| c.into()).collect();
    let transform = ring.lift(Basis { q: 1, p: 0 }, &wide);
    [
        stretch.iter().map(|&c| c.cast_unsigned()).collect(),
        stretch.iter().flat_map(|&c| i64::from(c).to_le_bytes()).collect(),
        transform.limbs()[0][..16].iter().flat_map(|x| x.to_le_bytes()).collect(),
    ]
}

/// What no freed block may hold: the secret of the file, the ephemeral one, the secret turned back
/// by the automorphism that [`use_secret`] makes keys for, and a decrypted value.
fn patterns(params: &Params, packed: &[u8]) -> Vec<Vec<u8>> {
    let ring = ring(params);
    let secret = unpacked(packed);
    let turned = automorphism::on_coefficients(&secret, automorphism::inverse(params.log_n(), GALOIS));
    let seed = TestSeeds::insecure(EPHEMERAL).next_seed();
    let ephemeral = sampler::ternary_fixed_weight(&seed, params.degree(), params.literal().sparse_weight);
    let in_memory = [secret, turned, ephemeral].iter().flat_map(|s| forms(&ring, s)).collect::<Vec<_>>();
    let others = [packed[40..72].to_vec(), [CANARY.to_le_bytes(); 2].concat()];
    in_memory.into_iter().chain(others).collect()
}

fn ring(params: &Params) -> RnsRing {
    params.ring().unwrap()
}

/// Everything an owner does with a secret.
fn use_secret(params: &Arc<Params>, folder: &TempDir, round: usize) {
    let ring = Arc::new(ring(params));
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
    drop(generator.galois(&secret, GALOIS, 3, &mut seeds).unwrap());
    let ephemeral = EphemeralSecret::new(params, &mut TestSeeds::insecure(EPHEMERAL));
    drop(generator.to_sparse(&secret, &ephemeral, &mut seeds).unwrap());
    drop(generator.from_sparse(&secret, &ephemeral, GALOIS, &mut seeds).unwrap());
    let evaluator = hetal_ckks::Evaluator::new(Arc::clone(params), Arc::clone(&ring));
    let values = vec![Complex64::ONE; params.slots()];
    let encoded = evaluator.encode(&values, params.scale(1), Basis { q: params.limbs(1), p: 0 }).unwrap();
    let encryptor = Encryptor::new(Arc::clone(params), Arc::clone(&ring));
    let ct = encryptor.encrypt(&secret, &encoded, &mut seeds);
    let opened = Decryptor::new(Arc::clone(params), ring).decrypt(&secret, &ct).unwrap();
    assert!((opened.peek()[0] - Complex64::ONE).norm() < 1e-3);
}

/// The content of a locked file is wiped, also if there is no memory to lock it.
fn use_locked_files() {
    let passphrase = Passphrase::new("words".to_owned().into()).unwrap();
    let content = Private::new(vec![CANARY; 64]);
    // SAFETY: every byte of a double is initialised, and the values outlive the slice.
    let bytes = unsafe { std::slice::from_raw_parts(content.peek().as_ptr().cast::<u8>(), 512) };
    FULL.store(true, Ordering::Relaxed);
    let refused = locked_file::lock(bytes, &passphrase);
    FULL.store(false, Ordering::Relaxed);
    assert!(matches!(refused, Err(Error::PassphraseMemory { .. })));
    let locked = locked_file::lock(bytes, &passphrase).unwrap();
    let opened = locked_file::unlock(std::path::Path::new("file"), locked, Some(&passphrase)).unwrap();
    assert_eq!(opened[..], bytes[..]);
}

#[test]
fn freed_memory_holds_no_secret() {
    let params = Arc::new(Params::named("insecure-toy11").unwrap());
    let folder = TempDir::new();
    // The same seeds give the same secret: what to look for is known before it is made again.
    use_secret(&params, &folder, 0);
    let file = std::fs::read(folder.path().join("plain0")).unwrap();
    PATTERNS.set(patterns(&params, &file[56..56 + params.degree() / 4])).unwrap();
    ARMED.store(true, Ordering::Relaxed);
    use_secret(&params, &folder, 1);
    // A decrypted value that is not exposed is wiped.
    drop(Private::new(vec![CANARY; 4]));
    drop(Private::new(vec![Complex64::new(CANARY, CANARY); 4]));
    use_locked_files();
    ARMED.store(false, Ordering::Relaxed);
    assert!(FREED.load(Ordering::Relaxed) > 100);
    assert_eq!(LEAKS.load(Ordering::Relaxed), 0, "blocks were freed with the secret in them");
    // The watch is awake: copies that are simply dropped are seen.
    ARMED.store(true, Ordering::Relaxed);
    let all = PATTERNS.get().unwrap();
    all.iter().for_each(|pattern| drop(std::hint::black_box(pattern.clone())));
    ARMED.store(false, Ordering::Relaxed);
    assert_eq!(LEAKS.load(Ordering::Relaxed), all.len());
}
