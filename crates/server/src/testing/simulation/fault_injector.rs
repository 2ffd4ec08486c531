//! The machine of a simulated server: random faults, the clock, and the power supply.

use crate::store::state::Millis;
use hetal_testkit::Random;
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// The actor that runs between two operations of another.
    static OTHER_ACTOR: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs `other` between the operations of `work`.
pub fn interleaved<T>(other: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
    OTHER_ACTOR.with(|v| v.replace(Some(Box::new(other))));
    let result = work();
    OTHER_ACTOR.with(|v| v.replace(None));
    result
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It succeeds.
    Success,
    /// It fails.
    Failure,
    /// The process ends during the operation, which is applied or not.
    Crash { applied: bool },
}

/// Probabilities of faults, in permille of the operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// An operation fails.
    pub fault: usize,
    /// The disk becomes full, or gets space again.
    pub full: usize,
}

pub struct FaultInjector(Mutex<Inner>);

struct Inner {
    random: Random,
    rates: FaultRates,
    /// Operations until the process ends.
    left: Option<usize>,
    alive: bool,
    full: bool,
    now: Millis,
    operations: u64,
}

impl FaultInjector {
    pub fn new(seed: u64) -> Self {
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (rates, now) = (FaultRates::default(), 1_000_000_000_000);
        Self(Mutex::new(Inner { random, rates, left: None, alive: true, full: false, now, operations: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Starts a process, which ends after `left` operations if given.
    pub fn start(&self, rates: FaultRates, left: Option<usize>) {
        let mut inner = self.lock();
        (inner.rates, inner.left, inner.alive, inner.full) = (rates, left, true, false);
    }

    pub fn is_alive(&self) -> bool {
        self.lock().alive
    }

    pub fn is_full(&self) -> bool {
        self.lock().full
    }

    /// Fills the disk.
    pub fn fill_disk(&self) {
        self.lock().full = true;
    }

    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    pub fn now(&self) -> Millis {
        self.lock().now
    }

    /// Moves the clock forwards or back.
    pub fn advance_clock(&self, millis: i64) {
        let mut inner = self.lock();
        inner.now = inner.now.saturating_add_signed(millis);
    }

    pub fn below(&self, bound: usize) -> usize {
        self.lock().random.below(bound)
    }

    pub fn chance(&self, permille: usize) -> bool {
        self.lock().random.chance(permille)
    }

    /// Decides about the next operation. `writes` means that it needs disk space.
    pub fn next_fault(&self, writes: bool) -> Injected {
        self.pause();
        let mut inner = self.lock();
        if !inner.alive {
            return Injected::Failure;
        }
        inner.operations += 1;
        inner.now += 1;
        if let Some(left) = &mut inner.left {
            *left -= 1;
            if *left == 0 {
                inner.alive = false;
                return Injected::Crash { applied: inner.random.chance(500) };
            }
        }
        let FaultRates { fault, full } = inner.rates;
        if inner.random.chance(full) {
            inner.full = !inner.full;
        }
        if inner.random.chance(fault) || writes && inner.full { Injected::Failure } else { Injected::Success }
    }

    /// Lets another actor run, with some probability.
    pub fn pause(&self) {
        if !self.is_alive() || !self.chance(250) {
            return;
        }
        // Interleaving does not nest.
        let Some(mut other) = OTHER_ACTOR.with(|v| v.borrow_mut().take()) else { return };
        other();
        OTHER_ACTOR.with(|v| v.replace(Some(other)));
    }
}
