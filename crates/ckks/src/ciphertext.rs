//! Ciphertexts and plaintexts.

/// `(c0, c1)` with `c0 + c1 s = scale * message + noise` modulo the first `limbs` primes of the chain.
#[derive(Clone)]
pub struct Ciphertext<P> {
    /// The part that does not meet the secret.
    pub c0: P,
    /// The part multiplied by the secret.
    pub c1: P,
    /// Primes it lives modulo.
    pub limbs: usize,
    /// The factor on the message.
    pub scale: f64,
}

/// An encoded vector: `scale * message` modulo some primes.
#[derive(Clone)]
pub struct Plaintext<P> {
    /// The polynomial.
    pub poly: P,
    /// The factor on the message.
    pub scale: f64,
}
