//! The noise of derived keys, measured with the secrets.

use super::*;
use hetal_ckks::derivation;
use hetal_ring::Isa;
use hetal_ring::sampler::TestSeeds;

/// log2 of a bound on the noise of a derived key, 11 sigma of the last one at `full`.
/// `hetal_ckks::derivation` says where it comes from, and why 2^46 would not be seen.
const LOG_NOISE: u32 = 11;

/// Keys from the sparse secret: at `full` those of a bootstrap.
const COUNT: i64 = 32;

/// A set of keys to derive others from, and its secrets.
struct Derivable {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    secret: SecretKey,
    ephemeral: EphemeralSecret,
    keys: EvaluationKeys<PackedPoly>,
    wanted: Vec<(KeyId, usize)>,
}

impl Derivable {
    fn new(set: &str, isa: Isa) -> Self {
        let params = Arc::new(Params::named(set).unwrap());
        let ring = Arc::new(params.ring_on(isa).unwrap());
        let generator = KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring));
        let mut seeds = TestSeeds::insecure(41);
        let secret = SecretKey::generate(&params, &mut seeds);
        let ephemeral = EphemeralSecret::new(&params, &mut seeds);
        let galois = |rotation| automorphism::rotation_to_galois(params.log_n(), rotation);
        let step = params.slots() as i64 / 128;
        let all = params.chain().len();
        let rotations = (0..COUNT).map(|k| step * (k - 1) - 16);
        let wanted: Vec<_> = rotations.map(|r| (KeyId::FromSparse(galois(r)), all)).collect();
        let mut keys = EvaluationKeys::default();
        for key in [wanted[0], (KeyId::Master(galois(step)), all)] {
            keys.insert(generator.make(&secret, key, Some(&ephemeral), &mut seeds).unwrap());
        }
        Self { params, ring, secret, ephemeral, keys, wanted }
    }

    fn derive(&mut self) {
        let target = (&*self.ring, self.ring.isa());
        let (mut seen, wanted) = (Vec::new(), &self.wanted);
        derivation::derive(&self.params, target, &mut self.keys, wanted, |done, all| {
            seen.push((done, all));
            Ok::<_, hetal_ckks::Error>(())
        })
        .unwrap();
        assert!(seen.into_iter().eq((1..wanted.len()).map(|done| (done, wanted.len() - 1))));
    }

    fn find(&self, id: KeyId) -> Arc<SwitchingKey<PackedPoly>> {
        Arc::clone(self.keys.find(id, self.params.sparse_key_basis()).unwrap())
    }

    /// The largest coefficient of `b + a s(X^(1/g)) - P s'`.
    fn noise(&self, id: KeyId) -> u64 {
        let KeyId::FromSparse(galois) = id else { panic!("{id}") };
        let key = self.find(id);
        let (ring, basis) = (&*self.ring, key.basis);
        let turned = automorphism::on_coefficients(
            self.secret.coefficients(),
            automorphism::inverse(self.params.log_n(), galois),
        );
        let target = SecretPoly::new(ring, basis, &turned);
        let chain = Basis { q: basis.q, p: 0 };
        let source = self.ephemeral.0.lift(ring, chain);
        let mut message = ring.zero(basis);
        ring.add_lifted_assign(&mut message, &source.0);
        let mut noise = ring.mul(&ring.unpack(&key.digits[0].1), &target.0, basis);
        ring.add_assign(&mut noise, &ring.unpack(&key.digits[0].0));
        ring.sub_assign(&mut noise, &message);
        ring.inverse(&mut noise);
        let centred = |limb: usize| -> Vec<i64> {
            let q = self.params.modulus(basis, limb).value();
            noise.limbs()[limb].iter().map(|&x| if x > q / 2 { x as i64 - q as i64 } else { x as i64 }).collect()
        };
        let first = centred(0);
        // It is one small polynomial modulo every prime.
        (1..basis.limbs()).for_each(|limb| assert!(centred(limb) == first, "{id}, limb {limb}"));
        first.iter().map(|x| x.unsigned_abs()).max().unwrap()
    }

    fn check_noise(mut self) {
        self.derive();
        assert!(self.keys.available().all(|(id, _)| !matches!(id, KeyId::Master(_))), "it has done its work");
        let noise: Vec<u64> = self.wanted.iter().map(|(id, _)| self.noise(*id)).collect();
        println!("{}: {noise:?}", self.params.name());
        assert!(noise.iter().all(|&x| x < 1 << LOG_NOISE), "{noise:?}");
        assert!(noise[0] < 64, "what the owner sent has fresh noise");
    }
}

#[test]
fn derived_keys_have_little_noise() {
    Derivable::new("insecure-toy12", Isa::detect()).check_noise();
}

#[test]
#[ignore = "at `full`: cargo test --release -p hetal-keys --lib derived_keys -- --ignored"]
fn derived_keys_have_little_noise_at_full() {
    Derivable::new("full", Isa::detect()).check_noise();
}

#[test]
fn derived_keys_have_the_same_bytes_everywhere() {
    let derived = |isa, threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let keys = pool.install(|| {
            let mut keys = Derivable::new("insecure-toy11", isa);
            keys.derive();
            keys
        });
        let unpack =
            |half: &PackedPoly| keys.ring.unpack(half).limbs().iter().map(|limb| limb.to_vec()).collect::<Vec<_>>();
        let digit = |id| {
            let key = keys.find(id);
            (unpack(&key.digits[0].0), unpack(&key.digits[0].1))
        };
        keys.wanted.iter().map(|(id, _)| digit(*id)).collect::<Vec<_>>()
    };
    let expected = derived(Isa::Scalar, 1);
    for isa in Isa::available() {
        assert!([1, 2].iter().all(|&threads| derived(isa, threads) == expected), "{}", isa.name());
    }
}

/// What a server refuses to derive keys from, as typed errors.
#[test]
fn keys_that_lead_nowhere_are_refused() {
    let derive = |keys: &mut EvaluationKeys<PackedPoly>, of: &Derivable, wanted: &[(KeyId, usize)]| {
        let target = (&*of.ring, of.ring.isa());
        derivation::derive(&of.params, target, keys, wanted, |_, _| Ok::<_, hetal_ckks::Error>(()))
    };
    let refused = |change: &dyn Fn(&mut EvaluationKeys<PackedPoly>, &Derivable)| {
        let of = Derivable::new("insecure-toy11", Isa::detect());
        let mut keys = EvaluationKeys::default();
        of.keys.iter().for_each(|key| keys.insert(copied(&of.ring, key)));
        change(&mut keys, &of);
        derive(&mut keys, &of, &of.wanted).unwrap_err().to_string()
    };
    let master_of =
        |keys: &EvaluationKeys<PackedPoly>| keys.available().find(|(id, _)| matches!(id, KeyId::Master(_))).unwrap().0;
    let without = refused(&|keys, _| keys.remove(master_of(keys)));
    assert!(without.contains("one master key and one key"), "{without}");
    let none = refused(&|keys, of| keys.remove(of.wanted[0].0));
    assert!(none.contains("one master key and one key"), "{none}");
    let elsewhere = refused(&|keys, of| {
        let mut other = copied(&of.ring, keys.find(master_of(keys), of.params.full_basis()).unwrap());
        keys.remove(other.id);
        other.id = KeyId::Master(3);
        keys.insert(other);
    });
    assert!(elsewhere.contains("leads to other keys"), "{elsewhere}");
    let short = refused(&|keys, of| {
        let mut other = copied(&of.ring, keys.find(master_of(keys), of.params.full_basis()).unwrap());
        keys.remove(other.id);
        other.digits.pop();
        keys.insert(other);
    });
    assert!(short.contains("other primes or digits"), "{short}");
    let foreign = refused(&|keys, of| {
        let mut other = copied(&of.ring, keys.find(master_of(keys), of.params.full_basis()).unwrap());
        keys.remove(other.id);
        other.basis.p -= 1;
        keys.insert(other);
    });
    assert!(foreign.contains("no master key"), "{foreign}");
}

fn copied(ring: &RnsRing, key: &SwitchingKey<PackedPoly>) -> SwitchingKey<PackedPoly> {
    let copy = |half: &PackedPoly| ring.pack(&ring.unpack(half));
    let digits = key.digits.iter().map(|(b, a)| (copy(b), copy(a))).collect();
    SwitchingKey { id: key.id, basis: key.basis, seed: key.seed.clone(), digits }
}

/// A set of few special primes has no master keys, and nobody makes one.
#[test]
fn sets_without_room_have_no_master_keys() {
    let params = Arc::new(Params::named("small").unwrap());
    assert!(params.master_digit_starts().is_empty());
    let ring = Arc::new(params.ring().unwrap());
    let generator = KeyGenerator::new(Arc::clone(&params), ring);
    let mut seeds = TestSeeds::insecure(42);
    let secret = SecretKey::generate(&params, &mut seeds);
    let refused = generator.master(&secret, 5, &mut seeds).err().unwrap();
    assert_eq!(refused, hetal_ckks::Error::NoMasterKeys { set: "small".to_owned() });
    assert_eq!(Params::named("full").unwrap().master_digit_starts(), [0, 6, 12, 17, 22, 27]);
}
