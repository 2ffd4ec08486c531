//! Ciphertexts of a session that know the blob in which they are stored.
//!
//! A session has one ciphertext in several places: an open check, the last accepted one, the
//! weights to return. They share it, and its bytes are made once.

use hetal_learn::trainer::ModelState;
use hetal_wire::BlobName;
use std::sync::{Arc, OnceLock};

/// A ciphertext of a session. Clones share it.
pub struct StorableCiphertext<C>(Arc<Shared<C>>);

struct Shared<C> {
    ciphertext: C,
    /// The name and the size of its blob, once it is stored.
    blob: OnceLock<(BlobName, u64)>,
}

impl<C> Clone for StorableCiphertext<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Clone> StorableCiphertext<C> {
    /// A ciphertext that is not stored.
    pub fn new(ciphertext: C) -> Self {
        Self(Arc::new(Shared { ciphertext, blob: OnceLock::new() }))
    }

    /// A ciphertext that was read from a blob.
    pub fn stored(ciphertext: C, blob: (BlobName, u64)) -> Self {
        Self(Arc::new(Shared { ciphertext, blob: OnceLock::from(blob) }))
    }

    /// The ciphertext.
    pub fn ciphertext(&self) -> &C {
        &self.0.ciphertext
    }

    /// A copy of the ciphertext.
    pub fn to_ciphertext(&self) -> C {
        self.0.ciphertext.clone()
    }

    /// The blob in which it is stored.
    pub fn blob(&self) -> Option<(BlobName, u64)> {
        self.0.blob.get().copied()
    }

    /// Records the blob in which it is stored. The bytes of a ciphertext, and so the name, never
    /// change.
    pub fn set_blob(&self, blob: (BlobName, u64)) {
        self.0.blob.get_or_init(|| blob);
    }
}

/// A model that the session holds.
pub fn wrap_model<C: Clone>(model: ModelState<C>) -> ModelState<StorableCiphertext<C>> {
    let each = |parts: Vec<C>| parts.into_iter().map(StorableCiphertext::new).collect();
    let ModelState { weights, momentum, recursion } = model;
    ModelState { weights: each(weights), momentum: momentum.map(each), recursion }
}

/// A copy of a model that the session holds, for the executor.
pub fn unwrap_model<C: Clone>(model: &ModelState<StorableCiphertext<C>>) -> ModelState<C> {
    let each = |parts: &Vec<StorableCiphertext<C>>| parts.iter().map(StorableCiphertext::to_ciphertext).collect();
    let ModelState { weights, momentum, recursion } = model;
    ModelState { weights: each(weights), momentum: momentum.as_ref().map(each), recursion: *recursion }
}
