//! Operations that change the primes: division and raising. Decomposition, in `key_switch`, shares
//! the middle.

use super::{CudaBackend, CudaPoly};
use crate::ffi::arguments::ConvertArgs;
use crate::memory::Buffer;
use crate::plan::Conversion;
use crate::source::Kernel;
use hetal_ring::{Basis, automorphism};
use std::sync::Arc;

impl CudaBackend {
    /// Inverse transforms and conversions; the results are ready for the plan's forward transforms
    /// in `work`.
    pub(super) fn convert(&self, plan: &Conversion, input: [u64; 2], work: u64) {
        let y: Buffer = self.pool.take(plan.y_limbs);
        self.inverse(&plan.inverse, y.address(), input);
        let args =
            ConvertArgs { groups: plan.groups.address(), targets: plan.targets.address(), y: y.address(), out: work };
        let kernel = if plan.wide { Kernel::ConvertWide } else { Kernel::Convert };
        self.launch_deep(kernel, plan.groups.len() as usize, plan.deep, &args);
    }

    /// `round(a / D)(X^galois)` for each of one or two polynomials, in one batch.
    pub(super) fn quotients<const COUNT: usize>(
        &self,
        a: [CudaPoly; COUNT],
        drop_q: usize,
        galois: u64,
    ) -> [CudaPoly; COUNT] {
        let from = a[0].basis;
        assert!(COUNT <= 2 && a.iter().all(|a| a.basis == from));
        assert!(drop_q < from.q && from.p + drop_q > 0, "something to divide by, something left");
        let to = Basis { q: from.q - drop_q, p: 0 };
        let out = std::array::from_fn(|_| self.uninit(to));
        let make = |&(from, drop_q, count): &(Basis, usize, usize)| {
            Conversion::of_division(&self.constants, &self.device, from, drop_q, count)
        };
        if let Some(plan) = self.made(&self.divisions, (from, drop_q, COUNT), make) {
            let addresses = |polys: &[CudaPoly; COUNT]| [polys[0].address(), polys[COUNT - 1].address()];
            let work = self.pool.take(COUNT * to.q);
            self.convert(&plan, addresses(&a), work.address());
            let mut args = self.ntt_args(&plan.forward, work.address(), addresses(&a), addresses(&out));
            args.inverse = automorphism::inverse(self.constants.log_n, galois) as u32;
            self.launch(Kernel::ForwardColumns, COUNT * to.q, &args);
            self.launch(Kernel::ForwardRowsDivide, COUNT * to.q, &args);
        }
        out
    }

    pub(super) fn raised(&self, a: &CudaPoly, basis: Basis) -> CudaPoly {
        assert_eq!(a.basis, Basis { q: 1, p: 0 });
        let out = self.uninit(basis);
        let make = |basis: &Basis| Conversion::of_raise(&self.constants, &self.device, *basis);
        let plan: Option<Arc<Conversion>> = self.made(&self.raises, basis, make);
        if let Some(plan) = plan {
            self.copy_limbs((out.address(), 0), (a.address(), 0), 1);
            self.convert(&plan, [a.address(); 2], out.address());
            self.forward(&plan.forward, out.address());
        }
        out
    }
}
