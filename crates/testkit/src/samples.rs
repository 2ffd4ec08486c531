//! A small object of every kind, as bytes.

use crate::{TestOwner, complex_vector, tiny_params_of_master_keys, tiny_params_of_two_kinds};
use hetal_ckks::bytes::{
    self, CHECKSUM_LEN, Codec, FormatError, HEADER_LEN, KeySetReader, KeySetWriter, Object, ObjectKind, Result,
};
use hetal_ckks::{
    Ciphertext, EvaluationKeys, KeyId, LiftForm, Params, Plaintext, PublicKey, RoundedCiphertext, SeededCiphertext,
    SwitchingKey, derivation,
};
use hetal_ring::{Basis, Isa, PackedPoly, Poly, RnsRing};

/// Objects of every kind, by one client at the smallest set with two kinds of keys.
pub struct Samples {
    /// Whose they are.
    pub client: TestOwner,
    /// Their bytes.
    pub bytes: Vec<(ObjectKind, Vec<u8>)>,
}

impl Samples {
    /// Makes them.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let sparse = [(KeyId::ToSparse, 1), (KeyId::FromSparse(1), 2), (KeyId::FromSparse(5), 2)];
        Self::with(TestOwner::of(tiny_params_of_two_kinds(), 6, Isa::detect()), sparse, (KeyId::Galois(5), 1))
    }

    /// Makes them for a set with master keys. Its switching key is one, and its key set has the
    /// keys that an owner sends.
    pub fn of_master_keys() -> Self {
        let sparse = [(KeyId::ToSparse, 1), (KeyId::FromSparse(5), 2), (KeyId::Master(5), 2)];
        Self::with(TestOwner::of(tiny_params_of_master_keys(), 6, Isa::detect()), sparse, (KeyId::Master(5), 2))
    }

    /// Objects of a client, with these keys in its set and one of them alone.
    fn with(client: TestOwner, sparse: [(KeyId, usize); 3], alone: (KeyId, usize)) -> Self {
        let codec = client.codec();
        let values = complex_vector(client.params.slots(), 1);
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, [(KeyId::Galois(5), 1), (KeyId::Relinearisation, 2)].into_iter().chain(sparse));
        let key = keys.find(alone.0, alone.0.basis(&client.params, alone.1)).unwrap();
        let plain = client.evaluator.encode(&values, client.params.scale(0), Basis { q: 1, p: 1 }).unwrap();
        let coefficients: Vec<i64> = (0..client.params.degree() as i64).map(|k| (k - 500) << 10).collect();
        let rounded = client.encrypt_rounded(&coefficients, 2, LiftForm::Real);
        let mut set = Vec::new();
        bytes::write_key_set(&codec, &keys, &mut set).unwrap();
        let bytes = vec![
            (ObjectKind::Params, client.params.to_bytes().unwrap()),
            (ObjectKind::Plaintext, codec.encode(&plain).unwrap()),
            (ObjectKind::Ciphertext, codec.encode(&client.encrypt(&values, 0)).unwrap()),
            (ObjectKind::SeededCiphertext, codec.encode(&client.encrypt_seeded(&values, 0)).unwrap()),
            (ObjectKind::PublicKey, codec.encode(&client.public_key(1)).unwrap()),
            (ObjectKind::SwitchingKey, codec.encode(&**key).unwrap()),
            (ObjectKind::KeySet, set),
            (ObjectKind::RoundedCiphertext, codec.encode(&rounded).unwrap()),
        ];
        Self { client, bytes }
    }

    /// The object of a kind.
    pub fn of(&self, kind: ObjectKind) -> &[u8] {
        let sample = self.bytes.iter().find(|(k, _)| *k == kind);
        &sample.unwrap().1
    }

    /// Reads a key set and derives two keys with it, as a server does.
    pub fn derive(&self, set: &[u8]) -> hetal_ckks::Result<()> {
        let mut keys = bytes::read_key_set(&self.client.codec(), &mut &set[..])?;
        let (params, ring) = (&self.client.params, &*self.client.ring);
        let wanted = [5, 25, 125].map(|galois| (KeyId::FromSparse(galois), 2));
        derivation::derive(params, (ring, ring.isa()), &mut keys, &wanted, |_, _| Ok(()))
    }

    /// Reads bytes as an object of a kind and writes it again.
    pub fn read(&self, kind: ObjectKind, bytes: &[u8]) -> Result<Vec<u8>> {
        let codec = &self.client.codec();
        match kind {
            ObjectKind::Params => Params::from_bytes(bytes)?.to_bytes(),
            ObjectKind::Plaintext => rewritten::<Plaintext<Poly>>(codec, bytes),
            ObjectKind::Ciphertext => rewritten::<Ciphertext<Poly>>(codec, bytes),
            ObjectKind::SeededCiphertext => rewritten::<SeededCiphertext<Poly>>(codec, bytes),
            ObjectKind::PublicKey => rewritten::<PublicKey<Poly>>(codec, bytes),
            ObjectKind::SwitchingKey => rewritten::<SwitchingKey<PackedPoly>>(codec, bytes),
            ObjectKind::KeySet => rewritten_set(codec, bytes),
            ObjectKind::RoundedCiphertext => rewritten::<RoundedCiphertext>(codec, bytes),
        }
    }
}

fn rewritten<T: Object<RnsRing>>(codec: &Codec<RnsRing>, bytes: &[u8]) -> Result<Vec<u8>> {
    codec.encode(&codec.decode::<T>(bytes)?)
}

fn rewritten_set(codec: &Codec<RnsRing>, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut rest = bytes;
    let mut reader = KeySetReader::new(codec, &mut rest)?;
    let names: Vec<_> = reader.remaining().collect();
    let mut out = Vec::new();
    let mut writer = KeySetWriter::new(codec, &names, &mut out)?;
    while let Some(key) = reader.read()? {
        writer.write(&key)?;
    }
    reader.finish()?;
    writer.finish()?;
    if rest.is_empty() { Ok(out) } else { Err(FormatError::TrailingBytes { extra: rest.len() }) }
}

/// Makes the checksums of an object right again, as far as its lengths allow: what comes after is
/// then reached.
pub fn fix_checksums(kind: ObjectKind, bytes: &mut [u8]) {
    let Some(end) = bytes.len().checked_sub(CHECKSUM_LEN) else { return };
    let checksum = if kind == ObjectKind::KeySet { fix_set(&mut bytes[..end]) } else { blake3::hash(&bytes[..end]) };
    bytes[end..].copy_from_slice(checksum.as_bytes());
}

/// Makes right the checksums inside a key set and gives its own.
fn fix_set(content: &mut [u8]) -> blake3::Hash {
    let word = |bytes: &[u8], at: usize| {
        let field = bytes.get(at..at + 8)?;
        usize::try_from(u64::from_le_bytes(field.try_into().ok()?)).ok()
    };
    let keys_at = |content: &[u8]| {
        let table = word(content, HEADER_LEN)?.checked_mul(16)?.checked_add(HEADER_LEN + 8)?;
        table.checked_add(CHECKSUM_LEN).filter(|&end| end <= content.len())
    };
    let Some(mut at) = keys_at(content) else { return blake3::hash(content) };
    let (table, rest) = content.split_at_mut(at - CHECKSUM_LEN);
    rest[..CHECKSUM_LEN].copy_from_slice(blake3::hash(table).as_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&content[..at]);
    while let Some(len) = word(content, at + 16).and_then(|len| len.checked_add(HEADER_LEN + CHECKSUM_LEN)) {
        let Some(key) = at.checked_add(len).and_then(|end| content.get_mut(at..end)) else { break };
        fix_checksums(ObjectKind::SwitchingKey, key);
        hasher.update(&key[len - CHECKSUM_LEN..]);
        at += len;
    }
    hasher.finalize()
}
