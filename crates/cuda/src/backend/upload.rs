//! Coefficients and bytes from the host to the device.

use super::{CudaBackend, CudaPoly};
use crate::device::lane;
use crate::ffi::arguments::LiftArgs;
use crate::plan::Transforms;
use crate::source::Kernel;
use hetal_ring::Basis;

impl CudaBackend {
    /// The polynomial of coefficients at an address: integers, or doubles to be scaled and rounded.
    pub(super) fn lifted(&self, basis: Basis, coefficients: u64, factor: Option<f64>) -> CudaPoly {
        let out = self.uninit(basis);
        let make = |basis: &Basis| Transforms::of_basis(&self.constants, &self.device, *basis);
        if let Some(plan) = self.made(&self.lifts, basis, make) {
            let args = LiftArgs {
                primes: self.constants.primes.address(),
                coefficients,
                out: out.address(),
                factor: factor.unwrap_or(0.0),
                q: basis.q as u32,
                full_q: self.constants.full.q as u32,
            };
            let kernel = if factor.is_some() { Kernel::LiftScaled } else { Kernel::Lift };
            self.launch(kernel, basis.limbs(), &args);
            self.forward(&plan.jobs, out.address());
        }
        out
    }

    /// What is uploaded in a fork, from a side of it or from another thread, may be used on its
    /// sides at once. What is uploaded on lane 0 before a fork comes before all of it.
    pub(super) fn settle_upload(&self) {
        if !self.health.is_broken() && (lane() != 0 || self.pool.is_forked()) {
            self.noted(self.device.synchronize());
        }
    }

    pub(super) fn upload_bytes(&self, to: u64, bytes: &[u8]) {
        if !self.health.is_broken() {
            self.noted(self.device.upload(to, bytes));
        }
    }
}
