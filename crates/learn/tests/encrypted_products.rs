//! The paper's matrix products under real encryption, against plain ones.
#![allow(clippy::unwrap_used)]

mod common;

use common::Random;
use hetal_circuits::clear::Ciphertext;
use hetal_circuits::{Bootstrapper, Clear, Complex64, Encrypted, Engine, encrypted};
use hetal_ckks::EvaluationKeys;
use hetal_learn::paper::{BlockShape, Blocks, diag_abt, diag_atb};
use hetal_learn::{Matrix, Result};
use hetal_testkit::TestOwner;

const SET: &str = "insecure-toy11";

/// A product of two matrices in blocks, at some levels.
struct Product {
    unit: BlockShape,
    a: Blocks<Vec<Complex64>>,
    b: Blocks<Vec<Complex64>>,
    levels: (usize, usize),
}

impl Product {
    /// The product by a function under encryption, with the keys that function used in the clear,
    /// opened.
    fn encrypted(&self, multiply: &impl Multiply) -> Blocks<Vec<Complex64>> {
        let client = TestOwner::new(SET, 3);
        let clear = Clear::new(client.params.slots(), client.params.top_level());
        let fresh = |m: &Blocks<Vec<Complex64>>, level| m.map(|block| Ok(clear.fresh(block, level)?)).unwrap();
        let plain: Blocks<Ciphertext> =
            multiply.run(&clear, &fresh(&self.a, self.levels.0), &fresh(&self.b, self.levels.1)).unwrap();
        let needs = clear.op_counts().keys();
        assert!(needs.bounds.is_empty());
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, encrypted::keys(&client.params, &needs));
        let evaluator = TestOwner::new(SET, 3).evaluator;
        let bootstrapper = Bootstrapper::new(&client.evaluator, &needs.bounds).unwrap();
        assert_eq!(bootstrapper.encoded_limbs(), 0);
        let engine = Encrypted::new(evaluator, keys, bootstrapper);
        let seal = |m: &Blocks<Vec<Complex64>>, level| {
            m.map(|block| Ok(engine.import(client.encrypt(block, level))?)).unwrap()
        };
        let product = multiply.run(&engine, &seal(&self.a, self.levels.0), &seal(&self.b, self.levels.1)).unwrap();
        // Both engines agree on the level, so the branch was the same.
        assert_eq!(engine.level(&product.rows()[0][0]), clear.level(&plain.rows()[0][0]));
        product.map(|block| Ok(client.decrypt(block.inner()))).unwrap()
    }
}

trait Multiply {
    fn run<E: Engine>(
        &self,
        engine: &E,
        a: &Blocks<E::Ciphertext>,
        b: &Blocks<E::Ciphertext>,
    ) -> Result<Blocks<E::Ciphertext>>;
}

struct Abt(usize);
struct Atb(usize);

impl Multiply for Abt {
    fn run<E: Engine>(
        &self,
        engine: &E,
        a: &Blocks<E::Ciphertext>,
        b: &Blocks<E::Ciphertext>,
    ) -> Result<Blocks<E::Ciphertext>> {
        diag_abt(engine, a, b, self.0, 1.0)
    }
}

impl Multiply for Atb {
    fn run<E: Engine>(
        &self,
        engine: &E,
        a: &Blocks<E::Ciphertext>,
        b: &Blocks<E::Ciphertext>,
    ) -> Result<Blocks<E::Ciphertext>> {
        // Without a branch the levels choose.
        diag_atb(engine, a, b, self.0, 1.0, None)
    }
}

/// Three blocks downwards and two to the right.
const ROWS: usize = 80;
const COLUMNS: usize = 41;

#[test]
fn diag_abt_is_exact_to_six_digits() {
    for c in [2, 4, 8] {
        let unit = BlockShape::new(32, 32).unwrap();
        let (x, w) = (Random(1).matrix(ROWS, COLUMNS, 1.0), Random(2).matrix(c - 1, COLUMNS, 1.0));
        let b = Blocks::pack_tiled_down(&w, c, unit).unwrap();
        let product = Product { unit, a: Blocks::pack(&x, unit), b, levels: (12, 12) };
        assert_eq!(product.a.shape(), (3, 2));
        let got = product.encrypted(&Abt(c)).unpack(ROWS, product.unit.columns());
        let dot = |i: usize, k: usize| x.row(i).iter().zip(w.row(k)).map(|(x, y)| x * y).sum();
        // Repeated to the right; the padded class is 0.
        let exact = Matrix::from_fn(ROWS, 32, |i, j| if j % c < c - 1 { dot(i, j % c) } else { 0.0 });
        let difference = got.max_difference(&exact);
        assert!(difference < 1e-6, "{c}: {difference:e}");
    }
}

#[test]
fn diag_atb_is_exact_to_six_digits_in_both_branches() {
    for (c, level_a) in [(4, 12), (4, 11), (8, 12), (8, 11)] {
        let unit = BlockShape::new(32, 32).unwrap();
        let (x, d) = (Random(3).matrix(ROWS, COLUMNS, 1.0), Random(4).matrix(ROWS, c, 1.0));
        let a = Blocks::pack_tiled_right(&d, c, unit).unwrap();
        let product = Product { unit, a, b: Blocks::pack(&x, unit), levels: (level_a, 12) };
        let got = product.encrypted(&Atb(c)).unpack(c, COLUMNS);
        let exact = Matrix::from_fn(c, COLUMNS, |k, j| (0..ROWS).map(|i| d[(i, k)] * x[(i, j)]).sum());
        let difference = got.max_difference(&exact);
        assert!(difference < 1e-6, "{c}, A at {level_a}: {difference:e}");
    }
}
