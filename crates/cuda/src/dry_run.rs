//! A device that computes nothing and grants every allocation. A dry run of a job on it shows how
//! much memory the job will hold.

use crate::Result;
use crate::device::{Device, KernelTime, not_recorded, recording};
use crate::ffi::arguments::KernelArguments;
use crate::source::{Arithmetic, Kernel};
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out addresses without memory behind them, each only once.
#[derive(Default)]
pub(crate) struct DryRunDevice {
    given: AtomicU64,
}

impl Device for DryRunDevice {
    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::Fp64
    }

    fn blocks_at_once(&self) -> u32 {
        1
    }

    fn fork(&self, _sides: usize) -> Result<()> {
        Ok(())
    }

    fn join(&self, _sides: usize) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a dry run without a card".to_owned()
    }

    fn memory(&self) -> Result<(usize, usize)> {
        Ok((usize::MAX, usize::MAX))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        // Zero stands for no memory.
        Ok(256 + self.given.fetch_add(bytes.next_multiple_of(256) as u64, Ordering::Relaxed))
    }

    fn free(&self, _address: u64) {}

    fn upload(&self, _to: u64, _bytes: &[u8]) -> Result<()> {
        not_recorded("copying to the card")
    }

    fn download(&self, _from: u64, words: &mut [u64]) -> Result<()> {
        not_recorded("copying from the card")?;
        words.fill(0);
        Ok(())
    }

    fn copy(&self, _to: u64, _from: u64, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn zero(&self, _to: u64, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn launch(&self, _kernel: Kernel, _grid: (u32, u32), _args: &dyn KernelArguments) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        not_recorded("waiting for the card")
    }

    fn can_record(&self) -> bool {
        true
    }

    fn record(&self, work: &mut dyn FnMut()) -> Result<u64> {
        recording(work);
        Ok(0)
    }

    fn replay(&self, _recording: u64) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _recording: u64) {}

    fn profile(&self, _on: bool) -> Vec<KernelTime> {
        Vec::new()
    }
}
