//! A server process of the simulation.

use super::LEASE;
use super::disk::SimDiskHandle;
use super::fault_injector::FaultInjector;
use super::state::SimState;
use super::toy_executor::ToyExecutor;
use crate::change_notifier::ChangeNotifier;
use crate::compute::param_registry::ParamRegistry;
use crate::config::{Bounds, Config};
use crate::jobs::required_keys::RequiredKeysCache;
use crate::jobs::spec::JobSpec;
use crate::monitor::metrics::Metrics;
use crate::server_core::Core;
use crate::store::blobs::LocalBlobs;
use crate::store::gc::collect_garbage;
use crate::store::staging::Staging;
use crate::store::state::State;
use crate::store::uploads::Uploads;
use crate::worker::give_way::GiveWay;
use crate::worker::pool::WorkerContext;
use crate::worker::shutdown::ShutdownSignal;
use crate::worker::training;
use crate::{Error, Result};
use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// A server process.
pub struct SimServer {
    pub faults: Arc<FaultInjector>,
    pub blobs: Arc<LocalBlobs>,
    pub state: Arc<SimState>,
    pub uploads: Uploads,
    pub worker: WorkerContext,
    pub encoded: Cell<usize>,
}

pub fn root() -> &'static Path {
    Path::new("server")
}

impl SimServer {
    pub fn start(faults: &Arc<FaultInjector>, disk: &SimDiskHandle, state: &Arc<SimState>) -> Result<Self> {
        static SETS: OnceLock<Arc<ParamRegistry>> = OnceLock::new();
        let param_sets =
            SETS.get_or_init(|| Arc::new(ParamRegistry::new(&["insecure-toy11".to_owned()], true).unwrap()));
        let any: Arc<dyn State> = Arc::<SimState>::clone(state);
        let folder = root().join("blobs");
        crate::store::disk::Disk::make_folder(disk, &folder).map_err(|e| Error::file(&folder, e))?;
        crate::store::disk::Disk::sync_folder(disk, root()).map_err(|e| Error::file(&folder, e))?;
        let blobs = Arc::new(LocalBlobs::on(Arc::new(disk.clone()), &folder)?);
        let staging = Staging::open(Arc::new(disk.clone()), &root().join("staging"), 8)?;
        let bounds = Bounds { attempts: 10_000, ..Bounds::default() };
        let checkpoint_every = 1 + faults.below(3) as u64;
        let (warm_seconds, stall_seconds, prepared_gib) = (0, 0, 2.0);
        let config =
            Config { warm_seconds, stall_seconds, checkpoint_every, prepared_gib, bounds, ..Config::default() };
        let clock = Arc::clone(faults);
        let core = Core {
            config,
            param_sets: Arc::clone(param_sets),
            state: Arc::clone(&any),
            blobs: Arc::<LocalBlobs>::clone(&blobs),
            notifier: ChangeNotifier::default(),
            metrics: Arc::new(Metrics::default()),
            required_keys: RequiredKeysCache::default(),
            give_way: GiveWay::default(),
            clock: Arc::new(move || clock.now()),
        };
        let worker = WorkerContext {
            core: Arc::new(core),
            name: "local".to_owned(),
            draining: false.into(),
            shutdown: ShutdownSignal::default(),
            device_fault: Mutex::default(),
        };
        any.release_worker(&worker.name)?;
        // As in a real server, a failed collection does not prevent the start.
        let _ = collect_garbage(&*any, &*blobs, &staging);
        let uploads = Uploads {
            state: any,
            blobs: Arc::<LocalBlobs>::clone(&blobs),
            staging,
            max_bytes: 1 << 20,
            reserve_bytes: 1 << 10,
            shared: None,
        };
        Ok(Self {
            faults: Arc::clone(faults),
            blobs,
            state: Arc::clone(state),
            uploads,
            worker,
            encoded: Cell::default(),
        })
    }

    /// Runs a worker once.
    pub fn work(&self) {
        let now = self.faults.now();
        let Ok(Some(claim)) = self.state.claim("local", now, now + 1000 * LEASE) else { return };
        let attempt = self.worker.begin_attempt(&claim);
        let toy = ToyExecutor { faults: &self.faults, blobs: &*self.blobs, job: &claim.job, encoded: &self.encoded };
        let JobSpec::Training(work) = &claim.job.spec else { panic!("only trainings are simulated") };
        let outcome = self.worker.check_runnable(&attempt).and_then(|refused| match refused {
            Some(outcome) => Ok(outcome),
            None => training::train(&attempt, &toy, work),
        });
        let _ = self.worker.record_end(&attempt, self.worker.next_state(&attempt, &outcome));
    }
}
