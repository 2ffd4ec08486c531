//! Operation counts of the matrix products: as run, and as printed in the paper's corrected table.

use super::Branch;
use hetal_circuits::clear::{OpCounts, OpKind};

/// An algorithm of the paper's comparison of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `A B^T` of Jin et al.
    PrivGdAbt,
    /// `A B^T` of Crockett.
    ColMajor,
    /// The paper's `A B^T`.
    DiagAbt,
    /// `A^T B` of Jin et al.
    PrivGdAtb,
    /// `A^T B` of Crockett.
    RowMajor,
    /// The paper's `A^T B`.
    DiagAtb(Branch),
}

/// Constant multiplications, multiplications and rotations, as the paper counts them: a
/// multiplication includes its relinearisation, and conjugations are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Multiplications by plaintexts and constants.
    pub cmult: u64,
    /// Multiplications of ciphertexts.
    pub mult: u64,
    /// Rotations.
    pub rot: u64,
}

impl From<&OpCounts> for Counts {
    fn from(counts: &OpCounts) -> Self {
        Self {
            cmult: counts.count(OpKind::PlainProduct) + counts.count(OpKind::ConstantProduct),
            mult: counts.count(OpKind::Product),
            rot: counts.count(OpKind::Rotation) + counts.count(OpKind::HoistedRotation),
        }
    }
}

/// A shape `(a, b, c)` of the paper's comparison: `A B^T` of `a x b` and `c x b`, `A^T B` of
/// `a x c` and `a x b`.
pub type ProductShape = (usize, usize, usize);

/// The five shapes.
pub const SHAPES: [ProductShape; 5] = [(128, 128, 4), (256, 256, 8), (512, 769, 4), (1024, 769, 8), (2048, 769, 16)];

/// One row of the paper's corrected table (`tab:matnum_fixed`) as printed, columns in the order of
/// [`Algorithm::ALL`].
type Row = [(u64, u64, u64); 7];

const PRINTED: [Row; 5] = [
    [(0, 512, 0), (8, 4, 63), (4, 2, 34), (0, 512, 7680), (8, 4, 63), (4, 2, 18), (4, 2, 18)],
    [(0, 2048, 0), (24, 16, 191), (8, 8, 64), (0, 2048, 30720), (24, 16, 191), (12, 8, 72), (15, 8, 75)],
    [(0, 3076, 0), (56, 52, 495), (4, 26, 50), (0, 3076, 46140), (56, 52, 495), (28, 26, 238), (40, 26, 250)],
    [
        (0, 6152, 0),
        (208, 200, 2047),
        (8, 100, 140),
        (0, 6152, 92280),
        (208, 200, 2047),
        (104, 100, 1008),
        (176, 100, 1080),
    ],
    [
        (0, 12304, 0),
        (800, 784, 8703),
        (16, 392, 456),
        (0, 12304, 184560),
        (800, 784, 8703),
        (400, 392, 4328),
        (736, 392, 4664),
    ],
];

impl Algorithm {
    /// All of them, `A B^T` first.
    pub const ALL: [Self; 7] = [
        Self::PrivGdAbt,
        Self::ColMajor,
        Self::DiagAbt,
        Self::PrivGdAtb,
        Self::RowMajor,
        Self::DiagAtb(Branch::RotateA),
        Self::DiagAtb(Branch::RotateB),
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::PrivGdAbt => "PrivGD-ABT",
            Self::ColMajor => "ColMajor",
            Self::DiagAbt => "DiagABT",
            Self::PrivGdAtb => "PrivGD-ATB",
            Self::RowMajor => "RowMajor",
            Self::DiagAtb(_) => "DiagATB",
        }
    }

    /// Which levels the branch is for.
    pub fn branch(self) -> Option<&'static str> {
        match self {
            Self::DiagAtb(Branch::RotateA) => Some("A>=B"),
            Self::DiagAtb(Branch::RotateB) => Some("A<B"),
            _ => None,
        }
    }

    /// Whether it multiplies `A B^T`; the others multiply `A^T B`.
    pub fn is_abt(self) -> bool {
        matches!(self, Self::PrivGdAbt | Self::ColMajor | Self::DiagAbt)
    }

    /// What the paper's corrected table prints.
    pub fn printed(self, shape: ProductShape) -> Option<Counts> {
        let row = SHAPES.iter().position(|&s| s == shape)?;
        let column = Self::ALL.iter().position(|&a| a == self)?;
        let (cmult, mult, rot) = PRINTED[row][column];
        Some(Counts { cmult, mult, rot })
    }
}
