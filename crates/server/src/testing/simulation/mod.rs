//! Simulation of servers on a machine with faults.
//!
//! The production code of uploads and trainings runs on a simulated disk, state and network. A seed
//! decides about faults: the process is killed during any operation, a power cut loses or tears
//! unsynced data, the disk is full, operations fail, bits flip, the clock jumps, responses and
//! streams are lost, and a second worker takes a job whose lease expired. Other actors run between
//! any two operations. Only the computation is a toy.
//!
//! In every schedule, acknowledged data stays, results are correct, damage is reported with the
//! name of the blob, and only jobs that need a damaged blob fail.
//!
//! `HETAL_SCHEDULES=1000000` runs more schedules, `HETAL_SEED=n` repeats one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod disk;
mod fault_injector;
mod machine;
mod server;
mod state;
mod tests;
mod toy_executor;

use crate::store::state::Quota;

const QUOTA: Quota = Quota { bytes: 1 << 20, uploads: 100, jobs: 10, kept_jobs: 10 };
const LEASE: u64 = 60;
