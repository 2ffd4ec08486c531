//! The engine on ciphertexts, over any backend.

use crate::engine::{Diagonal, Engine, Multiplication};
use crate::key_list::KeyList;
use crate::{Bootstrapper, Error, KeyPlan, Result, bootstrap, clear};
use hetal_ckks::{
    Backend, Ciphertext, EvaluationKeys, Evaluator, KeyId, LiftForm, LinearTransform, Params, Pattern, Plaintext,
    RotationSteps, RoundedCiphertext,
};
use hetal_ring::Basis;
use num_complex::Complex64;
use std::collections::BTreeMap;

/// Homomorphic arithmetic with evaluation keys: the engine of a server.
pub struct Encrypted<B: Backend> {
    evaluator: Evaluator<B>,
    keys: EvaluationKeys<B::Packed>,
    bootstrapper: Bootstrapper<B>,
}

/// A ciphertext with its level.
#[derive(Clone)]
pub struct LeveledCiphertext<P> {
    inner: Ciphertext<P>,
    level: usize,
    /// The level of the partners it was prepared for. If set, the scale is not the one of the
    /// level.
    partner: Option<usize>,
}

impl<P> LeveledCiphertext<P> {
    /// Takes a ciphertext of the scheme that has the limbs and the scale of a usable level.
    pub fn new(params: &Params, inner: Ciphertext<P>) -> Result<Self> {
        let (limbs, top) = (inner.limbs, params.top_level());
        let no_level = Error::NoSuchLevel { level: limbs.saturating_sub(params.limbs(0)), top };
        let level = params.level(limbs).ok_or(no_level)?;
        Self::with_scale(inner, level, None, params.scale(level))
    }

    /// Wraps a ciphertext whose scale is `scale`, up to rounding in the last bits of a double.
    fn with_scale(mut inner: Ciphertext<P>, level: usize, partner: Option<usize>, scale: f64) -> Result<Self> {
        if (inner.scale / scale - 1.0).abs() > 1e-11 {
            let (left, right) = (libm::log2(inner.scale), libm::log2(scale));
            return Err(hetal_ckks::Error::ScaleMismatch { operation: "engine", left, right }.into());
        }
        inner.scale = scale;
        Ok(Self { inner, level, partner })
    }

    /// The ciphertext of the scheme.
    pub fn inner(&self) -> &Ciphertext<P> {
        &self.inner
    }
}

/// A vector in coefficient form, on a backend.
pub struct UnliftedCiphertext<P> {
    inner: Ciphertext<P>,
    log_bound: u32,
    form: LiftForm,
}

/// A vector encoded for one [`Multiplication`].
pub struct EncodedVector<P> {
    plain: Plaintext<P>,
    place: Multiplication,
}

/// A matrix encoded for one [`Multiplication`].
pub struct EncodedMatrix<P> {
    matrix: LinearTransform<P>,
    place: Multiplication,
}

/// The keys that an encrypted run of a circuit needs, those of its bootstraps included: each
/// purpose with the limbs of its largest ciphertext. `circuit` comes from a dry run on
/// [`crate::Clear`].
pub fn keys(params: &Params, circuit: &clear::KeyRequirements) -> Vec<(KeyId, usize)> {
    keys_with_plan(params, circuit, KeyPlan::default())
}

/// [`keys`] for the bootstraps of another plan.
pub fn keys_with_plan(params: &Params, circuit: &clear::KeyRequirements, plan: KeyPlan) -> Vec<(KeyId, usize)> {
    let mut list = KeyList::new(params);
    circuit.rotations.iter().for_each(|&(k, level)| list.want_rotation(k, params.limbs(level)));
    circuit.relinearisation.iter().for_each(|&level| list.want(KeyId::Relinearisation, params.limbs(level)));
    circuit.conjugation.iter().for_each(|&level| list.want_conjugation(params.limbs(level)));
    if !circuit.bounds.is_empty() {
        bootstrap::keys_with_plan(params, plan).into_iter().for_each(|(id, limbs)| list.want(id, limbs));
    }
    list.into_vec()
}

/// The keys that an owner sends so that a server has all of `keys`, those of [`keys_with_plan`]. A
/// plan may leave keys to the server to derive ([`hetal_ckks::derivation`]).
pub fn sent_keys(params: &Params, keys: &[(KeyId, usize)], plan: KeyPlan) -> Vec<(KeyId, usize)> {
    let mut sent = keys.to_vec();
    if let Some([first, master]) = bootstrap::derivation(params, plan)
        && keys.iter().any(|(id, _)| *id == first)
    {
        sent.retain(|(id, _)| *id == first || !matches!(id, KeyId::FromSparse(_)));
        sent.push((master, params.chain().len()));
    }
    sent
}

type Ct<B> = LeveledCiphertext<<B as Backend>::Poly>;

impl<B: Backend> Encrypted<B> {
    /// An engine with evaluation keys and a prepared bootstrap.
    pub fn new(evaluator: Evaluator<B>, keys: EvaluationKeys<B::Packed>, bootstrapper: Bootstrapper<B>) -> Self {
        Self { evaluator, keys, bootstrapper }
    }

    /// The evaluator underneath.
    pub fn evaluator(&self) -> &Evaluator<B> {
        &self.evaluator
    }

    /// Takes a ciphertext of the scheme: see [`LeveledCiphertext::new`].
    pub fn import(&self, inner: Ciphertext<B::Poly>) -> Result<Ct<B>> {
        self.healthy(LeveledCiphertext::new(self.params(), inner)?)
    }

    /// Takes a vector in coefficient form.
    pub fn import_unlifted(&self, rounded: &RoundedCiphertext) -> Result<UnliftedCiphertext<B::Poly>> {
        let inner = rounded.expand(self.params(), &**self.evaluator.backend());
        self.healthy(UnliftedCiphertext { inner, log_bound: rounded.log_bound, form: rounded.form })
    }

    fn params(&self) -> &Params {
        self.evaluator.params()
    }

    /// The scale of a ciphertext of level `level` prepared for `partner`. Times the scale of the
    /// partner and divided by the next prime, it is the scale of the level below.
    fn scale(&self, level: usize, partner: Option<usize>) -> f64 {
        let params = self.params();
        match partner {
            None => params.scale(level),
            Some(_) if level == 0 => params.scale(0),
            Some(partner) => {
                let q = self.evaluator.last_prime(params.limbs(level));
                q * params.scale(level - 1) / params.scale(partner)
            }
        }
    }

    /// Wraps the result of an operation.
    fn sealed(&self, inner: Ciphertext<B::Poly>, level: usize, partner: Option<usize>) -> Result<Ct<B>> {
        self.healthy(LeveledCiphertext::with_scale(inner, level, partner, self.scale(level, partner))?)
    }

    /// Fails if the device behind the backend failed: then the result is invalid.
    fn healthy<T>(&self, result: T) -> Result<T> {
        self.evaluator.backend().health().map_err(hetal_ckks::Error::from)?;
        Ok(result)
    }

    /// The operand of a bootstrap, at level 0.
    fn bottom(&self, a: &Ct<B>) -> Result<Ct<B>> {
        if self.bootstrapper.is_sparse() { Err(Error::SparseEngine) } else { self.drop_to(a, 0) }
    }

    fn needs_level(operation: &'static str, needs: usize, has: usize) -> Result<()> {
        if has < needs { Err(Error::OutOfLevels { operation, needs, has }) } else { Ok(()) }
    }

    /// Both operands at the lower one's level.
    fn aligned(&self, operation: &'static str, a: &Ct<B>, b: &Ct<B>) -> Result<(Ct<B>, Ct<B>)> {
        if a.partner != b.partner {
            return Err(Error::Partner { operation, prepared: a.partner, needs: b.partner });
        }
        let level = a.level.min(b.level);
        Ok((self.drop_to(a, level)?, self.drop_to(b, level)?))
    }

    fn map(&self, a: &Ct<B>, f: impl FnOnce(&mut Ciphertext<B::Poly>) -> hetal_ckks::Result<()>) -> Result<Ct<B>> {
        let mut out = a.clone();
        f(&mut out.inner)?;
        self.healthy(out)
    }

    fn multiplier_scale(&self, place: Multiplication) -> Result<f64> {
        let top = self.top_level();
        if let Some(&level) = [Some(place.operand), place.partner].iter().flatten().find(|&&l| l > top) {
            return Err(Error::NoSuchLevel { level, top });
        }
        // A prepared result is still to be multiplied, which takes one more level.
        let needs = if place.partner.is_some() { 2 } else { 1 };
        Self::needs_level("plain multiplication", needs, place.at)?;
        Self::needs_level("plain multiplication", place.at, place.operand)?;
        let q = self.evaluator.last_prime(self.params().limbs(place.at));
        Ok(q * self.scale(place.at - 1, place.partner) / self.params().scale(place.operand))
    }

    fn multiplier_basis(&self, place: Multiplication) -> Basis {
        Basis { q: self.params().limbs(place.at), p: 0 }
    }

    fn check_length(&self, values: &[Complex64]) -> Result<()> {
        let (got, slots) = (values.len(), self.slots());
        if got == slots { Ok(()) } else { Err(Error::SlotCount { got, slots }) }
    }

    /// Checks that operands have the level their multiplier was encoded for, and that all results
    /// can be added.
    fn check_places<'a>(
        &self,
        operation: &'static str,
        terms: impl Iterator<Item = (&'a Ct<B>, Multiplication)>,
    ) -> Result<Multiplication>
    where
        B: 'a,
    {
        let mut common: Option<Multiplication> = None;
        for (a, place) in terms {
            if a.partner.is_some() {
                return Err(Error::Partner { operation, prepared: a.partner, needs: None });
            }
            let used = Multiplication { operand: a.level, ..common.unwrap_or(place) };
            if used != place {
                return Err(Error::WrongPlaintext { encoded: place, used });
            }
            common = Some(place);
        }
        common.ok_or(Error::Empty(operation))
    }

    fn with_rotation(&self, error: hetal_ckks::Error, ks: &[i64], level: usize) -> Error {
        match &error {
            hetal_ckks::Error::MissingKey { key: KeyId::Galois(g), .. } => {
                match ks.iter().find(|&&k| self.evaluator.galois_of_rotation(k) == *g) {
                    Some(&rotation) => Error::MissingRotation { rotation, level },
                    None => error.into(),
                }
            }
            _ => error.into(),
        }
    }
}

impl<B: Backend> Engine for Encrypted<B> {
    type Ciphertext = Ct<B>;
    type Unlifted = UnliftedCiphertext<B::Poly>;
    type Plaintext = EncodedVector<B::Poly>;
    type Pattern = Pattern<B>;
    type Transform = EncodedMatrix<B::Packed>;

    fn concurrently<T: Send, R: Send, F: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> std::result::Result<R, F> + Sync,
    ) -> std::result::Result<Vec<R>, F> {
        self.evaluator.backend().concurrently(items, work).into_iter().collect()
    }

    fn slots(&self) -> usize {
        self.params().slots()
    }

    fn top_level(&self) -> usize {
        self.params().top_level()
    }

    fn level(&self, a: &Ct<B>) -> usize {
        a.level
    }

    fn add(&self, a: &Ct<B>, b: &Ct<B>) -> Result<Ct<B>> {
        let (mut a, b) = self.aligned("addition", a, b)?;
        self.evaluator.add_assign(&mut a.inner, &b.inner)?;
        self.healthy(a)
    }

    fn sub(&self, a: &Ct<B>, b: &Ct<B>) -> Result<Ct<B>> {
        let (mut a, b) = self.aligned("subtraction", a, b)?;
        self.evaluator.sub_assign(&mut a.inner, &b.inner)?;
        self.healthy(a)
    }

    fn neg(&self, a: &Ct<B>) -> Result<Ct<B>> {
        self.map(a, |a| self.evaluator.neg_assign(a))
    }

    fn add_constant(&self, a: &Ct<B>, c: Complex64) -> Result<Ct<B>> {
        self.map(a, |a| self.evaluator.add_constant_assign(a, c))
    }

    fn add_plain(&self, a: &Ct<B>, values: &[Complex64]) -> Result<Ct<B>> {
        self.check_length(values)?;
        self.map(a, |a| self.evaluator.add_plain_assign(a, values))
    }

    fn mul_integer(&self, a: &Ct<B>, c: i64) -> Result<Ct<B>> {
        self.map(a, |a| self.evaluator.mul_integer_assign(a, c))
    }

    fn mul_i(&self, a: &Ct<B>, power: u32) -> Result<Ct<B>> {
        self.map(a, |a| self.evaluator.mul_i_assign(a, power))
    }

    fn drop_to(&self, a: &Ct<B>, level: usize) -> Result<Ct<B>> {
        if level == a.level {
            return Ok(a.clone());
        }
        Self::needs_level("level drop", level, a.level)?;
        if a.partner.is_some() {
            return Err(Error::Partner { operation: "level drop", prepared: a.partner, needs: None });
        }
        let (limbs, target) = (self.params().limbs(level + 1), self.params().scale(level));
        let terms = [(&a.inner, Complex64::ONE)];
        let inner = self.evaluator.linear_combination(&terms, Complex64::ZERO, limbs, target)?;
        self.sealed(inner, level, None)
    }

    fn linear_combination(&self, terms: &[(&Ct<B>, Complex64)], constant: Complex64) -> Result<Ct<B>> {
        let operation = "linear combination";
        if let Some((a, _)) = terms.iter().find(|(a, _)| a.partner.is_some()) {
            return Err(Error::Partner { operation, prepared: a.partner, needs: None });
        }
        let at = terms.iter().map(|(a, _)| a.level).min().ok_or(Error::Empty(operation))?;
        Self::needs_level(operation, 1, at)?;
        let terms: Vec<_> = terms.iter().map(|(a, c)| (&a.inner, *c)).collect();
        let target = self.params().scale(at - 1);
        let inner = self.evaluator.linear_combination(&terms, constant, self.params().limbs(at), target)?;
        self.sealed(inner, at - 1, None)
    }

    fn encode(&self, values: &[Complex64], place: Multiplication) -> Result<EncodedVector<B::Poly>> {
        self.check_length(values)?;
        let (scale, basis) = (self.multiplier_scale(place)?, self.multiplier_basis(place));
        self.healthy(EncodedVector { plain: self.evaluator.encode(values, scale, basis)?, place })
    }

    fn pattern(&self, values: &[Complex64]) -> Result<Pattern<B>> {
        self.check_length(values)?;
        self.healthy(self.evaluator.pattern(values)?)
    }

    fn encode_pattern(
        &self,
        pattern: &Pattern<B>,
        factor: f64,
        place: Multiplication,
    ) -> Result<EncodedVector<B::Poly>> {
        let (scale, basis) = (self.multiplier_scale(place)?, self.multiplier_basis(place));
        self.healthy(EncodedVector { plain: self.evaluator.encode_pattern(pattern, factor, scale, basis)?, place })
    }

    fn sum_of_plain_products(&self, terms: &[(&Ct<B>, &EncodedVector<B::Poly>)]) -> Result<Ct<B>> {
        let place = self.check_places("plain product", terms.iter().map(|(a, p)| (*a, p.place)))?;
        let terms: Vec<_> = terms.iter().map(|(a, p)| (&a.inner, &p.plain)).collect();
        let sum = self.evaluator.sum_of_plain_products(&terms, self.params().limbs(place.at))?;
        self.sealed(self.evaluator.rescale(sum)?, place.at - 1, place.partner)
    }

    fn sum_of_products(&self, terms: &[(&Ct<B>, &Ct<B>)]) -> Result<Ct<B>> {
        let operation = "sum of products";
        let (first, _) = terms.first().ok_or(Error::Empty(operation))?;
        let level = terms.iter().map(|(a, b)| a.level.min(b.level)).min().unwrap_or(0);
        Self::needs_level(operation, 1, level)?;
        let lowered: Vec<(Ct<B>, Ct<B>)>;
        let pairs: Vec<_> = if first.partner.is_some() {
            for (a, b) in terms {
                if a.partner != Some(b.level) || b.partner.is_some() || a.level != level {
                    return Err(Error::Partner { operation, prepared: a.partner, needs: Some(b.level) });
                }
            }
            terms.iter().map(|(a, b)| (&a.inner, &b.inner)).collect()
        } else {
            for x in terms.iter().flat_map(|(a, b)| [a, b]) {
                if x.partner.is_some() {
                    return Err(Error::Partner { operation, prepared: x.partner, needs: None });
                }
            }
            lowered = terms
                .iter()
                .map(|(a, b)| Ok((self.drop_to(a, level)?, self.drop_to(b, level)?)))
                .collect::<Result<_>>()?;
            lowered.iter().map(|(a, b)| (&a.inner, &b.inner)).collect()
        };
        self.sealed(self.evaluator.sum_of_products(&pairs, &self.keys)?, level - 1, None)
    }

    fn rotate(&self, a: &Ct<B>, k: i64) -> Result<Ct<B>> {
        self.rotate_many(a, &[k])?.pop().ok_or(Error::Empty("rotation"))
    }

    fn rotate_many(&self, a: &Ct<B>, ks: &[i64]) -> Result<Vec<Ct<B>>> {
        let galois: Vec<u64> = ks.iter().map(|&k| self.evaluator.galois_of_rotation(k)).collect();
        let rotated = self.evaluator.automorphisms(&a.inner, &galois, &self.keys);
        let rotated = rotated.map_err(|error| self.with_rotation(error, ks, a.level))?;
        let sealed = |inner| LeveledCiphertext { inner, level: a.level, partner: a.partner };
        self.healthy(rotated.into_iter().map(sealed).collect())
    }

    fn conjugate(&self, a: &Ct<B>) -> Result<Ct<B>> {
        let inner = self.evaluator.automorphism(&a.inner, self.evaluator.galois_of_conjugation(), &self.keys)?;
        self.healthy(LeveledCiphertext { inner, level: a.level, partner: a.partner })
    }

    fn prepare(&self, diagonals: &[Diagonal], place: Multiplication) -> Result<EncodedMatrix<B::Packed>> {
        let slots = self.slots();
        let mut by_rotation: BTreeMap<i64, Vec<Complex64>> = BTreeMap::new();
        for d in diagonals {
            self.check_length(&d.values)?;
            let sum =
                by_rotation.entry(d.rotation.rem_euclid(slots as i64)).or_insert_with(|| vec![Complex64::ZERO; slots]);
            sum.iter_mut().zip(&d.values).for_each(|(s, v)| *s += v);
        }
        let scale = self.multiplier_scale(place)?;
        let basis = self.params().key_basis(self.params().limbs(place.at));
        let matrix = self.evaluator.encode_matrix(&by_rotation, RotationSteps::inner(slots), scale, basis)?;
        self.healthy(EncodedMatrix { matrix, place })
    }

    fn transform_many(&self, a: &Ct<B>, matrices: &[&EncodedMatrix<B::Packed>]) -> Result<Vec<Ct<B>>> {
        let place = self.check_places("linear transform", matrices.iter().map(|m| (a, m.place)))?;
        let inner: Vec<_> = matrices.iter().map(|m| &m.matrix).collect();
        let rotations: Vec<i64> = inner.iter().flat_map(|m| m.rotations()).collect();
        let out = self.evaluator.transform_many(&a.inner, &inner, &self.keys);
        let out = out.map_err(|error| self.with_rotation(error, &rotations, place.at))?;
        out.into_iter().map(|inner| self.sealed(inner, place.at - 1, place.partner)).collect()
    }

    fn sum_of_transforms(&self, terms: &[(&Ct<B>, &EncodedMatrix<B::Packed>)]) -> Result<Ct<B>> {
        let place = self.check_places("linear transform", terms.iter().map(|(a, m)| (*a, m.place)))?;
        let inner: Vec<_> = terms.iter().map(|(a, m)| (&a.inner, &m.matrix)).collect();
        let rotations: Vec<i64> = terms.iter().flat_map(|(_, m)| m.matrix.rotations()).collect();
        let out = self.evaluator.sum_of_transforms(&inner, &self.keys);
        let out = out.map_err(|error| self.with_rotation(error, &rotations, place.at))?;
        self.sealed(out, place.at - 1, place.partner)
    }

    fn bootstrap(&self, a: &Ct<B>, log_bound: u32) -> Result<Ct<B>> {
        let bottom = self.bottom(a)?;
        let inner = self.bootstrapper.bootstrap(&self.evaluator, &bottom.inner, log_bound, &self.keys)?;
        self.sealed(inner, self.top_level(), None)
    }

    fn bootstrap_real(&self, a: &Ct<B>, log_bound: u32) -> Result<Ct<B>> {
        let bottom = self.bottom(a)?;
        let inner = self.bootstrapper.bootstrap_real(&self.evaluator, &bottom.inner, log_bound, &self.keys)?;
        self.sealed(inner, self.top_level(), None)
    }

    fn bootstrap_periodic(&self, a: &Ct<B>, period: usize, log_bound: u32) -> Result<Ct<B>> {
        let bottom = self.bottom(a)?;
        let inner =
            self.bootstrapper.bootstrap_periodic(&self.evaluator, &bottom.inner, period, log_bound, &self.keys)?;
        self.sealed(inner, self.top_level(), None)
    }

    fn bootstrap_pair(&self, a: &Ct<B>, b: &Ct<B>, log_bound: u32) -> Result<(Ct<B>, Ct<B>)> {
        let (a, b) = (self.bottom(a)?, self.bottom(b)?);
        let pair = (&a.inner, &b.inner);
        let (a, b) = self.bootstrapper.bootstrap_pair(&self.evaluator, pair, log_bound, &self.keys)?;
        Ok((self.sealed(a, self.top_level(), None)?, self.sealed(b, self.top_level(), None)?))
    }

    fn lift(&self, a: &UnliftedCiphertext<B::Poly>) -> Result<Ct<B>> {
        let lift = match a.form {
            LiftForm::Complex => Bootstrapper::lift,
            LiftForm::Real => Bootstrapper::lift_real,
        };
        let inner = lift(&self.bootstrapper, &self.evaluator, &a.inner, a.log_bound, &self.keys)?;
        self.sealed(inner, self.top_level(), None)
    }

    fn bootstrap_precise(&self, a: &Ct<B>, log_bound: u32) -> Result<Ct<B>> {
        let bottom = self.bottom(a)?;
        let inner = self.bootstrapper.bootstrap_precise(&self.evaluator, &bottom.inner, log_bound, &self.keys)?;
        self.sealed(inner, self.top_level() - 1, None)
    }
}
