//! The layout of batches, logits and classifiers in the slots.
//!
//! Slots are columns of `rows` entries: slot `j * rows + i` with `i = u * c' + rho`. A feature
//! block holds two features per complex slot, with samples along `i` and feature pairs along `j`.
//! In a classifier, group `u` holds feature block `u`, the group after the last block holds the
//! bias in its first column, and `(rho + j) mod c'` is the class. Logits, labels and probabilities
//! hold sample `i` and class `(rho + j) mod c'`, so sums over classes are rotations by multiples of
//! `rows`.
//!
//! A column has room for `rows / c'` groups. If the blocks and the bias need more, the classifier
//! continues in further ciphertexts, its parts. Each part has all classes and some blocks. Logits
//! are sums over blocks, so the parts are added before the softmax, which is computed once. Parts
//! of classes would each need a softmax of their own.
//!
//! The logits of `slots / c'` rows fill a ciphertext. A larger batch is split into pieces of that
//! many rows, whose gradients are added.

use crate::{Error, Result};

/// How the rows, features and classes of one shape are arranged in slots. An arrangement exists if
/// the slots suffice for the square of the padded number of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    slots: usize,
    rows: usize,
    features: usize,
    classes: usize,
    window: usize,
}

/// The most features that are supported.
pub const MAX_FEATURES: usize = 2048;
/// The most classes that are supported.
pub const MAX_CLASSES: usize = 128;

impl Geometry {
    /// The layout for batches of up to `rows` rows. The batch is padded to the first power of two
    /// for which the classifier is one ciphertext, or else to the first that fits. If none fits, it
    /// is the layout of the largest pieces.
    pub fn new(slots: usize, rows: usize, features: usize, classes: usize) -> Result<Self> {
        check("slots", slots, slots.is_power_of_two(), "a power of two")?;
        check("rows", rows, rows > 0, "at least 1")?;
        check("features", features, (1..=MAX_FEATURES).contains(&features), "1 to 2048")?;
        check("classes", classes, (2..=MAX_CLASSES).contains(&classes), "2 to 128")?;
        let largest = slots / classes.next_power_of_two();
        let smallest = rows.checked_next_power_of_two().unwrap_or(usize::MAX).min(largest);
        let sizes = (0..usize::BITS).map(|log| 1 << log).take_while(|&size| size <= largest);
        let mut fitting = sizes
            .filter(|&size| size >= smallest)
            .map(|rows| Self { slots, rows, features, classes, window: 1 })
            .filter(Self::fits)
            .peekable();
        let first = fitting.peek().copied();
        let best = fitting.find(|g| g.parts() == 1).or(first);
        best.map(Self::with_best_window).ok_or(Error::DoesNotFit { slots, classes })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Rows of a batch or of a piece of one, a power of two (`a`).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Features of a row, the bias not counted (`f`).
    pub fn features(&self) -> usize {
        self.features
    }

    /// Number of classes (`c`).
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Number of classes padded to a power of two (`c'`).
    pub fn padded_classes(&self) -> usize {
        self.classes.next_power_of_two()
    }

    /// Columns of `rows` slots (`s1 = slots / rows`).
    pub fn columns(&self) -> usize {
        self.slots / self.rows
    }

    /// Feature pairs of a row (`ceil(f / 2)`): feature `h` is paired with feature `h + pairs`.
    pub fn pairs(&self) -> usize {
        self.features.div_ceil(2)
    }

    /// Ciphertexts of a batch of features (`nb`).
    pub fn blocks(&self) -> usize {
        self.pairs().div_ceil(self.columns())
    }

    /// Groups of `c'` rows in a column (`U`): the number of blocks, the bias included, in one
    /// ciphertext of weights.
    pub fn groups(&self) -> usize {
        self.rows / self.padded_classes()
    }

    /// Pieces of a batch of `rows` rows.
    pub fn pieces(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows).max(1)
    }

    /// Ciphertexts of a classifier.
    pub fn parts(&self) -> usize {
        (self.blocks() + 1).div_ceil(self.groups())
    }

    /// The blocks in a part of the classifier, in the order of their groups; number
    /// [`Geometry::blocks`] is the bias.
    pub fn blocks_of(&self, part: usize) -> std::ops::Range<usize> {
        let end = self.blocks() + 1;
        (part * self.groups()).min(end)..((part + 1) * self.groups()).min(end)
    }

    /// Groups of the classifier that are expanded by rotations of one ciphertext before doubling
    /// (`B2`).
    pub fn window(&self) -> usize {
        self.window
    }

    /// Column, row of a slot.
    pub fn place(&self, slot: usize) -> (usize, usize) {
        (slot / self.rows, slot % self.rows)
    }

    /// The class in column `j`, row `i`: `(i + j) mod c'`.
    pub fn class(&self, j: usize, i: usize) -> usize {
        (i + j) % self.padded_classes()
    }

    fn fits(&self) -> bool {
        let classes = self.padded_classes();
        self.rows >= classes && self.columns() >= classes
    }

    /// Chooses the window with the fewest rotations: `w - 1` hoisted ones for each part, 1 for each
    /// block, then `log2(U/w)` for each block and the bias.
    fn with_best_window(self) -> Self {
        let doublings = |w: usize| (self.groups() / w).ilog2() as usize;
        let rotations = |&w: &usize| self.parts() * (w - 1) + (self.blocks() + 1) * (1 + doublings(w));
        let windows = (0..=self.groups().ilog2()).map(|log| 1 << log);
        Self { window: windows.min_by_key(rotations).unwrap_or(1), ..self }
    }
}

fn check(what: &'static str, value: usize, good: bool, must: &'static str) -> Result<()> {
    if good { Ok(()) } else { Err(Error::Invalid { what, value: value as f64, must }) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paper_shapes() {
        let cases = [
            ((1024, 10), (12, 64, 16)),
            ((2048, 10), (24, 128, 32)),
            ((512, 3), (6, 128, 8)),
            ((1024, 7), (12, 128, 16)),
        ];
        for ((rows, classes), expected) in cases {
            let g = Geometry::new(32768, rows, 768, classes).unwrap();
            assert_eq!((g.blocks(), g.groups(), g.window()), expected);
            assert_eq!(g.rows(), rows);
        }
    }

    #[test]
    fn small_batches_are_padded_until_everything_fits() {
        let g = Geometry::new(32768, 5, 4, 10).unwrap();
        assert!(g.rows() >= 32 && g.blocks() < g.groups());
        assert_eq!(Geometry::new(32768, 1000, 768, 10).unwrap().rows(), 1024);
    }

    #[test]
    fn every_supported_shape_fits() {
        for features in [1, 4, 31, 768, 1024, 2048] {
            for classes in 2..=MAX_CLASSES {
                let g = Geometry::new(32768, 64, features, classes).unwrap();
                assert!(g.rows() * g.padded_classes() <= g.slots());
                // Every block is in exactly one part, and the bias in the last.
                let blocks: Vec<_> = (0..g.parts()).flat_map(|part| g.blocks_of(part)).collect();
                assert_eq!(blocks, (0..=g.blocks()).collect::<Vec<_>>());
                assert!((0..g.parts()).all(|part| (1..=g.groups()).contains(&g.blocks_of(part).len())));
                assert!(g.parts() == 1 || classes > 16 && features > 31, "{features} x {classes}: {}", g.parts());
            }
        }
    }

    #[test]
    fn classifiers_beyond_one_ciphertext() {
        let shape = |rows, features, classes| {
            let g = Geometry::new(32768, rows, features, classes).unwrap();
            (g.rows(), g.blocks(), g.groups(), g.parts())
        };
        assert_eq!(shape(256, 768, 64), (256, 3, 4, 1));
        assert_eq!(shape(256, 768, 128), (256, 3, 2, 2));
        assert_eq!(shape(100, 768, 128), (128, 2, 1, 3));
        assert_eq!(shape(512, 2048, 64), (512, 16, 8, 3));
        assert_eq!(shape(256, 2048, 128), (256, 8, 2, 5));
    }

    #[test]
    fn batches_beyond_one_ciphertext_of_logits() {
        for (rows, features, classes, piece, pieces) in
            [(512, 768, 128, 256, 2), (1024, 768, 128, 256, 4), (4096, 768, 10, 2048, 2), (300, 4, 128, 256, 2)]
        {
            let g = Geometry::new(32768, rows, features, classes).unwrap();
            assert_eq!((g.rows(), g.pieces(rows)), (piece, pieces), "{rows} x {features} x {classes}");
        }
        let one = Geometry::new(32768, 1000, 768, 10).unwrap();
        assert_eq!((one.pieces(1000), one.pieces(1), one.pieces(0)), (1, 1, 1));
        assert_eq!(Geometry::new(8192, 64, 12, 100), Err(Error::DoesNotFit { slots: 8192, classes: 100 }));
    }

    #[test]
    fn nonsense_is_refused() {
        for (s, a, f, c) in
            [(1000, 4, 4, 2), (1024, 0, 4, 2), (1024, 4, 0, 2), (1024, 4, 4, 1), (1024, 4, 4, 129), (1024, 4, 2049, 2)]
        {
            assert!(matches!(Geometry::new(s, a, f, c), Err(Error::Invalid { .. })));
        }
        assert_eq!(Geometry::new(1024, usize::MAX, 4, 2).unwrap().rows(), 512);
    }
}
