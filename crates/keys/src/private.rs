//! Values that are not to be published as they are.

/// A decrypted value, noise included. Its owner may use it for anything that stays at home; whoever publishes it gives the
/// secret key away (`docs/security.md`, "Released values"), so nothing prints or sends it by accident: that takes
/// [`Private::expose`], or a [`crate::Release`].
pub struct Private<T>(T);

impl<T> Private<T> {
    /// Marks a value as private.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for its owner's own use.
    pub fn expose(self) -> T {
        self.0
    }

    /// A look at the value, for its owner's own use.
    pub fn peek(&self) -> &T {
        &self.0
    }

    /// What a function makes of it, private as well.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Private<U> {
        Private(f(self.0))
    }
}

impl<T> std::fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Private(..)")
    }
}
