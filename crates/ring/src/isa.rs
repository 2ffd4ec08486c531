//! The instruction sets of the kernels.

/// An instruction set with its own kernels. All give the same bytes; only their speed differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Portable reference.
    Scalar,
    /// 256-bit vectors of doubles with fused multiply-add.
    Avx2,
    /// 512-bit vectors of doubles.
    Avx512,
    /// The same, and sums of products of 52-bit integers.
    Avx512Ifma,
}

impl Isa {
    /// The fastest set this machine has.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar)
    }

    /// Every set this machine has, slowest first.
    pub fn available() -> Vec<Self> {
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Ifma];
        all.into_iter().filter(|set| set.or_scalar() == *set).collect()
    }

    /// This set if the machine has it, otherwise the reference. Kernels may run the result.
    #[inline]
    pub(crate) fn or_scalar(self) -> Self {
        let there = match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma => Self::Avx512.or_scalar() == Self::Avx512 && is_x86_feature_detected!("avx512ifma"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        };
        if there { self } else { Self::Scalar }
    }

    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2-fma",
            Self::Avx512 => "avx512f",
            Self::Avx512Ifma => "avx512-ifma",
        }
    }
}
