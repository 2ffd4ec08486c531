//! The kernels' source, and the shapes of their launches.

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

/// Options of every compilation. Products and sums are fused only where the source says so.
pub(crate) fn options(log_n: u32) -> Vec<String> {
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space"]
        .iter()
        .map(|&o| o.to_owned())
        .chain([format!("-DLOG_N={log_n}")])
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
            _ => (256, n / 512),
        }
    }
}
