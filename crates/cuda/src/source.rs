//! The kernels' source, and the shapes of their launches.

use hetal_ring::Modulus;

/// All kernels, as one translation unit.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/field.cu"),
    include_str!("../kernels/pointwise.cu"),
    include_str!("../kernels/ntt.cu"),
    include_str!("../kernels/conversion.cu"),
    include_str!("../kernels/key_switch.cu"),
);

/// Degrees the kernels are written for.
pub(crate) const LOG_N: std::ops::RangeInclusive<u32> = 10..=17;

/// What kernels compute with. Both give the same residues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Doubles, with fused multiply-add: for GPUs with as many units for them as for floats of 32
    /// bits, or half as many.
    Fp64,
    /// 64-bit integers, for the others.
    Integer,
}

impl Arithmetic {
    /// The faster one on a GPU of compute capability `capability` (90 for 9.0): the large chips of
    /// each generation (V100, A100, H100, H200, B200) have many units for doubles.
    pub(crate) fn of_card(capability: u32) -> Self {
        if [70, 80, 90, 100].contains(&capability) { Self::Fp64 } else { Self::Integer }
    }

    /// The one of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Fp64, Self::Integer].into_iter().find(|a| a.name() == name)
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fp64 => "fp64",
            Self::Integer => "integer",
        }
    }

    /// The definitions that choose it and the degree in the sources.
    pub(crate) fn definitions(self, log_n: u32) -> Vec<String> {
        let chosen = (self == Self::Integer).then(|| "-DHETAL_INTEGER".to_owned());
        std::iter::once(format!("-DLOG_N={log_n}")).chain(chosen).collect()
    }

    /// A number as the kernels read it.
    pub(crate) fn word(self, x: i64) -> u64 {
        match self {
            Self::Fp64 => (x as f64).to_bits(),
            Self::Integer => x as u64,
        }
    }

    /// What stands for `1/q`: see `Field` in the sources.
    pub(crate) fn inverse(self, q: &Modulus) -> u64 {
        match self {
            Self::Fp64 => (1.0 / q.value() as f64).to_bits(),
            Self::Integer => ((1u128 << (q.bits() + 62)) / u128::from(q.value())) as u64,
        }
    }
}

/// Options of every compilation. Products and sums are fused only where the source says so.
pub(crate) fn options(log_n: u32, arithmetic: Arithmetic) -> Vec<String> {
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space"]
        .iter()
        .map(|&o| o.to_owned())
        .chain(arithmetic.definitions(log_n))
        .collect()
}

/// Constants of the sources that the host shares.
pub(crate) const MAX_LIMBS: usize = 96;
pub(crate) const MAX_TERMS: usize = 32;
pub(crate) const MAX_LINEAR: usize = 8;
pub(crate) const MAX_CONSTANTS: usize = 224;
pub(crate) const MAX_SOURCES: usize = 8;
pub(crate) const MAX_DIGITS: usize = 8;
pub(crate) const MAX_STEPS: usize = 16;
pub(crate) const MAX_ROWS: usize = 8;

/// Entries of a row of the transform's square.
const ROW: u32 = 256;

macro_rules! kernels {
    ($($variant:ident = $name:literal,)*) => {
        /// A kernel of the sources.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kernel { $(#[allow(missing_docs)] $variant,)* }

        impl Kernel {
            /// All of them, in the order of their numbers.
            pub(crate) const ALL: &[Kernel] = &[$(Kernel::$variant,)*];

            /// Its name in the sources.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Kernel::$variant => $name,)* }
            }
        }
    };
}

kernels! {
    Add = "add",
    Sub = "sub",
    Neg = "neg",
    Multiply = "multiply",
    MultiplyAdd = "multiply_add",
    MultiplyHalves = "multiply_halves",
    MultiplyHalvesAdd = "multiply_halves_add",
    AddHalves = "add_halves",
    LinearSum = "linear_sum",
    Automorphism = "automorphism",
    Lift = "lift",
    LiftScaled = "lift_scaled",
    TensorSum = "tensor_sum",
    PlainSum = "plain_sum",
    ForwardColumns = "ntt_forward_columns",
    ForwardRows = "ntt_forward_rows",
    ForwardRowsDivide = "ntt_forward_rows_divide",
    InverseRows = "ntt_inverse_rows",
    InverseColumns = "ntt_inverse_columns",
    Convert = "convert",
    ConvertWide = "convert_wide",
    InnerProduct = "inner_product",
    RotatedPairs = "rotated_pairs",
    Weigh = "weigh",
    Pause = "pause",
}

impl Kernel {
    /// Threads of a block, and blocks of one limb, at degree `2^log_n`.
    pub(crate) fn shape(self, log_n: u32) -> (u32, u32) {
        let n = 1u32 << log_n;
        match self {
            Kernel::ForwardColumns | Kernel::InverseColumns => {
                let log_rows = log_n - ROW.ilog2();
                let upper = if log_rows == 9 { 5 } else { log_rows.min(4) };
                let columns = if log_rows > 4 { 4096 >> log_rows } else { ROW };
                (columns << (log_rows - upper), ROW / columns)
            }
            Kernel::ForwardRows | Kernel::ForwardRowsDivide | Kernel::InverseRows => {
                let threads = (n / 16).min(256);
                (threads, n / (16 * threads))
            }
            Kernel::Weigh => (128, n / 128),
            Kernel::Pause => (32, 1),
            _ => (256, n / 512),
        }
    }
}
