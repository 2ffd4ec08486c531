//! Decrypted values that must not be published as they are.

use hetal_ckks::Complex64;
use zeroize::Zeroize;

/// A decrypted value with its noise.
///
/// Its owner may use it for anything private. Publishing it can reveal the secret key
/// (`docs/security/releases.md`), so nothing prints or sends it by accident: [`Private::expose`] or
/// a [`crate::Release`] is needed. A value that is not exposed is wiped when dropped.
pub struct Private<T: Wipe>(T);

/// Values whose memory can be overwritten.
pub trait Wipe: Default {
    /// Overwrites the value in a way that the compiler cannot optimise away.
    fn wipe(&mut self);
}

impl Wipe for Vec<f64> {
    fn wipe(&mut self) {
        self.zeroize();
    }
}

impl Wipe for Vec<Complex64> {
    fn wipe(&mut self) {
        for z in self.iter_mut() {
            z.re.zeroize();
            z.im.zeroize();
        }
    }
}

impl<T: Wipe> Private<T> {
    /// Marks a value as private.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for its owner's own use.
    pub fn expose(mut self) -> T {
        std::mem::take(&mut self.0)
    }

    /// A reference to the value, for its owner's own use.
    pub fn peek(&self) -> &T {
        &self.0
    }
}

impl<T: Wipe> Drop for Private<T> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

impl<T: Wipe> std::fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Private(..)")
    }
}
