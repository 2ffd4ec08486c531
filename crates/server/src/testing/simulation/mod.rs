//! Random lives of a server on a machine with faults.
//!
//! The server's own upload and training code runs here, over a disk, a state and a network that fail as a seed says: the process is
//! killed in the middle of any operation, power is cut and what was not synced is lost or torn, the disk is full, operations fail, bits
//! rot, the clock jumps, answers and streams are lost, a second worker takes a job whose lease ran out. Between any two operations
//! others act. Only the computation is a toy. Whatever happens: what was acknowledged stays, what comes out is right, what rotted is
//! named, and only the jobs that needed it fail.
//!
//! `HETAL_SCHEDULES=1000000` runs more, `HETAL_SEED=n` the one that failed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod disk;
mod machine;
mod server;
mod state;
mod tests;
mod toy_executor;
mod world;

use crate::store::state::Quota;

const QUOTA: Quota = Quota { bytes: 1 << 20, uploads: 100, jobs: 10, kept_jobs: 10 };
const LEASE: u64 = 60;
