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

mod disk;
mod state;
mod toy_executor;
mod world;

use crate::compute::device::ComputeDevice;
use crate::compute::param_registry::ParamRegistry;
use crate::config::{Bounds, Config};
use crate::context::Core;
use crate::jobs::key_requirements::KeyRequirementsCache;
use crate::jobs::lifecycle::{cancel_job, delete_job};
use crate::jobs::spec::{JobSpec, RowBlob, TrainingSpec};
use crate::jobs::verdict_timeout::VerdictTimeouts;
use crate::metrics::Metrics;
use crate::notify::ChangeNotifier;
use crate::store::blobs::{Blobs, Key, LocalBlobs, Namespace, name_of, read};
use crate::store::gc::collect_garbage;
use crate::store::staging::Staging;
use crate::store::state::{BlobKind, JobState, MAX_BACKOFF, MemoryState, NewJob, Quota, SqliteState, State, Upload};
use crate::store::uploads::{Resumed, UploadWriter, Uploads};
use crate::tenants::Tenant;
use crate::worker::pool::WorkerContext;
use crate::worker::shutdown::{ShutdownReason, ShutdownSignal};
use crate::worker::training;
use crate::{Error, Result};
use disk::{SimDisk, SimDiskHandle};
use hetal_learn::{Limits, Verdict};
use hetal_wire::{BlobName, JobId, v1};
use state::SimState;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use toy_executor::{Expected, ToyExecutor, expected};
use world::{FaultRates, World, interleaved};

const QUOTA: Quota = Quota { bytes: 1 << 20, uploads: 100, jobs: 10, kept_jobs: 10 };
const LEASE: u64 = 60;

/// One life of a server.
struct SimServer {
    world: Arc<World>,
    blobs: Arc<LocalBlobs>,
    state: Arc<SimState>,
    uploads: Uploads,
    worker: WorkerContext,
    encoded: Cell<usize>,
}

fn root() -> &'static Path {
    Path::new("server")
}

impl SimServer {
    fn start(world: &Arc<World>, disk: &SimDiskHandle, state: &Arc<SimState>) -> Result<Self> {
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
        let checkpoint_every = 1 + world.below(3) as u64;
        let (warm_seconds, stall_seconds, prepared_gib) = (0, 0, 2.0);
        let config =
            Config { warm_seconds, stall_seconds, checkpoint_every, prepared_gib, bounds, ..Config::default() };
        let clock = Arc::clone(world);
        let core = Core {
            config,
            param_sets: Arc::clone(param_sets),
            state: Arc::clone(&any),
            blobs: Arc::<LocalBlobs>::clone(&blobs),
            notifier: ChangeNotifier::default(),
            metrics: Arc::new(Metrics::default()),
            key_requirements: KeyRequirementsCache::default(),
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
        // As in a real server, what cannot be swept up stops nobody.
        let _ = collect_garbage(&*any, &*blobs, &staging);
        let uploads = Uploads {
            state: any,
            blobs: Arc::<LocalBlobs>::clone(&blobs),
            staging,
            max_bytes: 1 << 20,
            reserve_bytes: 1 << 10,
        };
        Ok(Self {
            world: Arc::clone(world),
            blobs,
            state: Arc::clone(state),
            uploads,
            worker,
            encoded: Cell::default(),
        })
    }

    /// What a worker does, once.
    fn work(&self) {
        let now = self.world.now();
        let Ok(Some(claim)) = self.state.claim("local", now, now + 1000 * LEASE) else { return };
        let attempt = self.worker.begin_attempt(&claim);
        let toy = ToyExecutor { world: &self.world, blobs: &*self.blobs, job: &claim.job, encoded: &self.encoded };
        let JobSpec::Training(work) = &claim.job.spec else { panic!("only trainings are simulated") };
        let outcome = self.worker.check_runnable(&attempt).and_then(|refused| match refused {
            Some(outcome) => Ok(outcome),
            None => training::train(&attempt, &toy, work),
        });
        let _ = self.worker.record_end(&attempt, self.worker.next_state(&attempt, &outcome));
    }
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientStage {
    Send(usize),
    Create,
    Follow,
    DeleteJob,
    DeleteUpload(usize),
    Done,
}

/// A client and everything it was told.
struct Client {
    tenant: Tenant,
    number: u8,
    files: Vec<(BlobKind, Vec<u8>)>,
    training: TrainingSpec,
    expected: Expected,
    cancels_at: Option<u32>,
    deletes: bool,
    stage: ClientStage,
    stream: Option<UploadWriter>,
    uploaded: BTreeSet<BlobName>,
    job: Option<JobId>,
    seen: Vec<v1::Event>,
    question: Option<u32>,
    judged: Vec<u32>,
    cancelled: bool,
    end: Option<JobState>,
}

/// The verdict of a client on a round: always the same.
fn verdict(number: u8, round: u32) -> Verdict {
    match (u32::from(number) * 7 + round * 5) % 6 {
        0..=2 => Verdict::Continue,
        3 => Verdict::LowerRate,
        4 => Verdict::WidenRange,
        _ => Verdict::Stop,
    }
}

impl Client {
    fn new(world: &World, number: u8, tenant: &str) -> Self {
        let file = |kind, n: usize| {
            let size = 56 + world.below(200);
            (kind, (0..size).map(|i| (i * 31 + n * 7 + usize::from(number) * 101) as u8).collect::<Vec<_>>())
        };
        let batches = 1 + world.below(3);
        let mut files = vec![file(BlobKind::Keys, 0)];
        files.extend((1..=batches).map(|n| file(BlobKind::Batch, n)));
        files.push(file(BlobKind::Features, 9));
        let name = |n: usize| name_of(&files[n].1);
        let row_blob = |n: usize| RowBlob { blob: name(n), rows: 1 };
        let mut agreement = Limits::default().defaults;
        (agreement.patience, agreement.max_epochs) = (1 + world.below(2), 1 + world.below(5));
        let training = TrainingSpec {
            set: "toy".to_owned(),
            features: 4,
            classes: 3,
            keys: name(0),
            batches: (1..=batches).map(row_blob).collect(),
            validation: vec![row_blob(batches + 1)],
            agreement,
        };
        Self {
            tenant: tenant.to_owned().try_into().unwrap(),
            number,
            expected: expected(&training, |round| verdict(number, round)),
            files,
            training,
            cancels_at: world.chance(150).then(|| 1 + world.below(3) as u32),
            deletes: world.chance(400),
            stage: ClientStage::Send(0),
            stream: None,
            uploaded: BTreeSet::new(),
            job: None,
            seen: Vec::new(),
            question: None,
            judged: Vec::new(),
            cancelled: false,
            end: None,
        }
    }

    fn name(&self, file: usize) -> BlobName {
        name_of(&self.files[file].1)
    }

    /// One request, whose answer may be lost on the way.
    fn step(&mut self, server: &SimServer, corrupted: &Corrupted) {
        let lost = server.world.chance(50);
        let done = match self.stage {
            ClientStage::Send(file) => self.send(server, file, lost),
            ClientStage::Create => self.create(server, lost),
            ClientStage::Follow => self.follow(server, corrupted, lost),
            ClientStage::DeleteJob => self.delete_job(server, lost),
            ClientStage::DeleteUpload(file) => self.delete_upload(server, file, lost),
            ClientStage::Done => return,
        };
        if let Err(error) = done {
            let passes = error.is_transient() || matches!(error, Error::Limit { .. } | Error::Damaged { .. });
            assert!(passes, "client {} at {:?}: {error}", self.number, self.stage);
        }
    }

    fn send(&mut self, server: &SimServer, file: usize, lost: bool) -> Result<()> {
        let (kind, bytes) = (self.files[file].0, self.files[file].1.clone());
        let (name, size) = (name_of(&bytes), bytes.len() as u64);
        let Some(mut writer) = self.stream.take() else {
            let wanted = Upload { name, kind, size, complete: false };
            let progress = server.uploads.begin(&self.tenant, &wanted, &QUOTA)?;
            if lost {
                return Ok(());
            }
            if progress.complete {
                self.acknowledge(file);
                return Ok(());
            }
            match server.uploads.resume(&self.tenant, name, progress.held)? {
                Resumed::Complete(_) => self.acknowledge(file),
                Resumed::Partial(writer) => self.stream = Some(writer),
            }
            return Ok(());
        };
        if lost {
            // The stream breaks off.
            return Ok(());
        }
        let held = writer.held() as usize;
        if held < bytes.len() {
            let end = (held + 1 + server.world.below(100)).min(bytes.len());
            server.uploads.add(&mut writer, &bytes[held..end])?;
        }
        if !writer.is_whole() {
            self.stream = Some(writer);
            return Ok(());
        }
        server.uploads.finish(&self.tenant, writer, |_, start| {
            assert_eq!(start[..], bytes[..start.len()]);
            Ok(())
        })?;
        if server.world.chance(900) {
            self.acknowledge(file);
        }
        Ok(())
    }

    fn acknowledge(&mut self, file: usize) {
        self.uploaded.insert(self.name(file));
        self.stage = if file + 1 < self.files.len() { ClientStage::Send(file + 1) } else { ClientStage::Create };
    }

    fn create(&mut self, server: &SimServer, lost: bool) -> Result<()> {
        // The request's id is the client's, the job's comes from the server: another one each time.
        let mut id = [self.number; 16];
        id[1..9].copy_from_slice(&server.world.operations().to_le_bytes());
        let (request, spec) = ([self.number; 16], JobSpec::Training(self.training.clone()));
        let new = NewJob { id: JobId(id), request, label: String::new(), spec };
        let job = server.state.create_job(&self.tenant, &new, &QUOTA, server.world.now())?;
        if !lost {
            (self.job, self.stage) = (Some(job.id), ClientStage::Follow);
        }
        Ok(())
    }

    fn follow(&mut self, server: &SimServer, corrupted: &Corrupted, lost: bool) -> Result<()> {
        let id = self.job.unwrap();
        if let Some(round) = self.question {
            return self.answer(server, id, round, lost);
        }
        let events = server.state.events(&self.tenant, id, self.seen.len() as u64, 3)?;
        if lost {
            return Ok(());
        }
        for event in events {
            self.handle_event(server, corrupted, id, event.what.as_ref().unwrap())?;
            assert_eq!(event.sequence, self.seen.len() as u64 + 1);
            self.seen.push(event);
            if self.question.is_some() {
                break;
            }
        }
        if self.end.is_some() {
            self.stage = if self.deletes { ClientStage::DeleteJob } else { ClientStage::Done };
        }
        Ok(())
    }

    /// Looks at an event; fails if a blob cannot be read now.
    fn handle_event(
        &mut self,
        server: &SimServer,
        corrupted: &Corrupted,
        id: JobId,
        what: &v1::event::What,
    ) -> Result<()> {
        use v1::event::What;
        let fetch = |output: &v1::Output| {
            let name = BlobName::try_from(&output.blob[..]).unwrap();
            match read(&*server.blobs, &Key::new(&self.tenant, Namespace::Job(id), name), toy_executor::MOST) {
                Err(Error::Damaged { .. }) if corrupted.borrow().contains(&name) => Ok(name),
                Err(error @ (Error::NoOutput { .. } | Error::Damaged { .. })) => panic!("{error}"),
                other => other.map(|_| name),
            }
        };
        match what {
            What::Validation(v) => {
                let logits = v.logits.iter().map(fetch).collect::<Result<Vec<_>>>()?;
                assert_eq!(logits, self.expected.logits[v.round as usize - 1], "wrong logits of round {}", v.round);
                self.question = (!self.judged.contains(&v.round)).then_some(v.round);
            }
            What::Finished(f) => {
                let outputs = f.outputs.iter().map(|o| Ok((o.epoch, fetch(o)?))).collect::<Result<Vec<_>>>()?;
                assert_eq!(outputs, self.expected.outputs, "wrong weights");
                self.end = Some(JobState::Finished);
            }
            What::Failed(f) => {
                let named = corrupted.borrow().iter().any(|name| f.reason.contains(&name.to_string()));
                assert!(named, "a job failed though nothing that it names was damaged: {}", f.reason);
                self.end = Some(JobState::Failed);
            }
            What::Cancelled(_) => {
                assert!(self.cancelled, "nobody cancelled");
                self.end = Some(JobState::Cancelled);
            }
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, server: &SimServer, id: JobId, round: u32, lost: bool) -> Result<()> {
        if self.cancels_at == Some(round) {
            self.cancelled = true;
            cancel_job(&*server.state, &*server.blobs, &self.tenant, id, server.world.now())?;
            self.question = None;
            return Ok(());
        }
        match server.state.judge(&self.tenant, id, round, verdict(self.number, round)) {
            Ok(()) if lost => {}
            Ok(()) => {
                self.judged.push(round);
                self.question = None;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn delete_job(&mut self, server: &SimServer, lost: bool) -> Result<()> {
        match delete_job(&*server.state, &*server.blobs, &self.tenant, self.job.unwrap()) {
            Ok(()) if lost => {}
            // Done by an earlier request whose answer was lost.
            Ok(()) | Err(Error::NoJob { .. }) => {
                self.job = None;
                self.stage = ClientStage::DeleteUpload(0);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn delete_upload(&mut self, server: &SimServer, file: usize, lost: bool) -> Result<()> {
        let name = self.name(file);
        // From here on it may be gone.
        self.uploaded.remove(&name);
        match server.uploads.delete(&self.tenant, name) {
            Ok(()) if lost => {}
            Ok(()) | Err(Error::NoBlob { .. }) => {
                self.stage =
                    if file + 1 < self.files.len() { ClientStage::DeleteUpload(file + 1) } else { ClientStage::Done };
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Everything it was told is still so.
    fn check(&self, disk: &SimDisk, state: &dyn State, corrupted: &Corrupted) {
        for (_, bytes) in &self.files {
            let name = name_of(bytes);
            if self.uploaded.contains(&name) {
                let upload = state.upload(&self.tenant, name).unwrap();
                assert!(upload.is_some_and(|u| u.complete), "an acknowledged upload was forgotten");
                let held = disk.contents(&path(&self.tenant, Namespace::Uploads, name));
                let intact = held.as_ref() == Some(bytes) || held.is_some() && corrupted.borrow().contains(&name);
                assert!(intact, "an acknowledged upload was lost");
            }
        }
        let Some(id) = self.job else { return };
        if self.stage == ClientStage::DeleteJob {
            return;
        }
        state.job(&self.tenant, id).expect("an acknowledged job was lost");
        let events = state.events(&self.tenant, id, 0, 1000).unwrap();
        assert!(events.starts_with(&self.seen), "what was told has changed");
        for &round in &self.judged {
            assert_eq!(state.verdict(id, round).unwrap(), Some(verdict(self.number, round)), "a verdict was lost");
        }
    }
}

fn path(tenant: &Tenant, namespace: Namespace, name: BlobName) -> PathBuf {
    root().join("blobs/tenants").join(Key::new(tenant, namespace, name).to_string())
}

type Corrupted = Rc<RefCell<BTreeSet<BlobName>>>;
type Clients = Rc<Vec<RefCell<Client>>>;

/// Everything that outlives a process.
struct Machine {
    world: Arc<World>,
    disk: SimDiskHandle,
    state: Arc<SimState>,
    clients: Clients,
    corrupted: Corrupted,
}

/// What schedules met.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    lives: u64,
    cuts: u64,
    corrupted: u64,
    operations: u64,
    finished: u64,
    failed: u64,
    cancelled: u64,
}

impl Machine {
    fn new(seed: u64, state: Box<dyn State>) -> Self {
        let world = Arc::new(World::new(seed));
        let disk = SimDiskHandle(Arc::new(SimDisk::new(&world, root())));
        let state = Arc::new(SimState::new(&world, state));
        let tenants = ["ann", "bob", "ann"];
        let count = 1 + world.below(tenants.len());
        let clients = (0..count).map(|n| RefCell::new(Client::new(&world, n as u8, tenants[n]))).collect();
        Self { world, disk, state, clients: Rc::new(clients), corrupted: Corrupted::default() }
    }

    fn all_done(&self) -> bool {
        self.clients.iter().all(|c| c.borrow().stage == ClientStage::Done)
    }

    /// Lives of the server until all clients are done, the first few of them ended by force.
    fn run(&self) -> Totals {
        let (world, mut totals) = (&self.world, Totals::default());
        let forced = world.below(8) as u64;
        let mut corruptions_left = if world.chance(150) { 1 } else { 0 };
        while !self.all_done() || totals.lives <= forced {
            let left = (totals.lives < forced).then(|| 1 + world.below(400));
            let rates = if left.is_some() {
                FaultRates { fault: world.below(15), full: world.below(4) }
            } else {
                FaultRates::default()
            };
            world.start(rates, left);
            self.run_process(left.is_some(), &mut corruptions_left);
            for client in self.clients.iter() {
                client.borrow_mut().stream = None;
            }
            if world.chance(500) {
                self.disk.0.cut_power();
                totals.cuts += 1;
            }
            self.check();
            totals.lives += 1;
        }
        self.check_final_state();
        totals.corrupted = self.corrupted.borrow().len() as u64;
        totals.operations = world.operations();
        for client in self.clients.iter() {
            match client.borrow().end {
                Some(JobState::Finished) => totals.finished += 1,
                Some(JobState::Failed) => totals.failed += 1,
                _ => totals.cancelled += 1,
            }
        }
        totals
    }

    fn check(&self) {
        for client in self.clients.iter() {
            client.borrow().check(&self.disk.0, self.state.without_faults(), &self.corrupted);
        }
    }

    /// One process, until it ends or nothing is left to do.
    fn run_process(&self, forced: bool, corruptions_left: &mut usize) {
        let Ok(server) = SimServer::start(&self.world, &self.disk, &self.state).map(Rc::new) else { return };
        for turn in 0.. {
            if !self.world.is_alive() || !forced && self.all_done() || forced && turn > 500 {
                return;
            }
            assert!(turn < 20_000, "nothing gets done any more");
            if *corruptions_left > 0 && self.world.chance(20) {
                *corruptions_left -= 1;
                self.corrupt_bit();
            }
            let (other, clients, corrupted) =
                (Rc::clone(&server), Rc::clone(&self.clients), Rc::clone(&self.corrupted));
            interleaved(move || act(&other, &clients, &corrupted), || act(&server, &self.clients, &self.corrupted));
        }
    }

    /// Turns over a bit of something that is kept.
    fn corrupt_bit(&self) {
        if let Some(path) = self.disk.0.corrupt_bit(&root().join("blobs/tenants")) {
            let name = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            self.corrupted.borrow_mut().insert(name);
        }
    }

    /// The end: whatever is named is there after another power cut, and nothing else is.
    fn check_final_state(&self) {
        self.disk.0.cut_power();
        self.world.start(FaultRates::default(), None);
        let server = SimServer::start(&self.world, &self.disk, &self.state).unwrap();
        self.check();
        let mut named = BTreeSet::new();
        for client in self.clients.iter().map(RefCell::borrow) {
            named.extend(client.uploaded.iter().map(|name| path(&client.tenant, Namespace::Uploads, *name)));
            let Some(id) = client.job else { continue };
            let job = server.state.job(&client.tenant, id).unwrap();
            assert_eq!(Some(job.state), client.end);
            for event in &client.seen {
                let outputs = match event.what.as_ref().unwrap() {
                    v1::event::What::Validation(v) => &v.logits,
                    v1::event::What::Finished(f) => &f.outputs,
                    _ => continue,
                };
                let names = outputs.iter().map(|output| BlobName::try_from(&output.blob[..]).unwrap());
                named.extend(names.map(|name| path(&client.tenant, Namespace::Job(id), name)));
            }
        }
        let there: BTreeSet<_> = self.disk.0.paths().into_iter().collect();
        assert_eq!(there, named, "files that nobody names, or names without files");
    }
}

/// Someone acts: a client that is not in the middle of something, a worker, the clock.
fn act(server: &SimServer, clients: &Clients, corrupted: &Corrupted) {
    match server.world.below(20) {
        0..=12 => {
            if let Ok(mut client) = clients[server.world.below(clients.len())].try_borrow_mut() {
                client.step(server, corrupted);
            }
        }
        13..=18 => server.work(),
        _ => server.world.advance_clock(match server.world.below(4) {
            0 => 1000 * LEASE as i64 + 1,
            1 => -1000 * LEASE as i64,
            2 => 366 * 24 * 3_600_000,
            _ => -366 * 24 * 3_600_000,
        }),
    }
}

fn simulate(seeds: impl Iterator<Item = u64>, state: impl Fn() -> Box<dyn State>) -> Totals {
    let mut all = Totals::default();
    for seed in seeds {
        let guard = PrintSeedOnPanic(seed);
        let totals = Machine::new(seed, state()).run();
        drop(guard);
        all.lives += totals.lives;
        all.cuts += totals.cuts;
        all.corrupted += totals.corrupted;
        all.operations += totals.operations;
        all.finished += totals.finished;
        all.failed += totals.failed;
        all.cancelled += totals.cancelled;
    }
    all
}

/// Says, when a schedule fails, how to see it again.
struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was HETAL_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn acknowledged_work_survives_thousands_of_random_faults() {
    let seeds = match number("HETAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HETAL_SCHEDULES").unwrap_or(10_000),
    };
    let count = seeds.clone().count() as u64;
    let totals = simulate(seeds, || Box::new(MemoryState::default()));
    println!("{count} schedules: {totals:?}");
    if count >= 1000 {
        // The faults were there, and did not keep the work from being done.
        assert!(totals.lives > 3 * count && totals.cuts > count && totals.corrupted > count / 20, "{totals:?}");
        assert!(totals.finished > count && totals.failed > count / 1000 && totals.cancelled > count / 20, "{totals:?}");
    }
}

/// An interrupted sync is repaired by a copy; where there is no room for one, that does not stop a start.
#[test]
fn an_interrupted_upload_stops_no_start_on_a_full_disk() {
    let world = Arc::new(World::new(7));
    let disk = SimDiskHandle(Arc::new(SimDisk::new(&world, root())));
    let (staging, ann) = (root().join("staging"), Tenant::try_from("ann".to_owned()).unwrap());
    let (bytes, name) = (vec![5; 1000], name_of(&[5; 1000]));
    Staging::open(Arc::new(disk.clone()), &staging, 8).unwrap();
    crate::store::disk::Disk::make_folder(&disk, &staging.join("ann")).unwrap();
    for full in [false, true] {
        let syncing = staging.join(format!("ann/{name}.syncing"));
        crate::store::disk::Disk::append(&disk, &syncing).unwrap().write_all(&bytes).unwrap();
        if full {
            crate::store::disk::Disk::remove(&disk, &staging.join(format!("ann/{name}"))).unwrap();
            world.fill_disk();
        }
        let opened = Staging::open(Arc::new(disk.clone()), &staging, 8).unwrap();
        let held = opened.received(&ann, name).unwrap();
        assert!(if full { held < 1000 } else { held == 1000 }, "{held}");
        assert!(disk.0.contents(&syncing).is_none(), "it takes no more room");
    }
}

/// A checkpoint stores what changed since the last one: in the middle of an epoch the model, and not again what earlier epochs left.
#[test]
fn a_checkpoint_stores_what_changed() {
    let mut cancelled = 0;
    for seed in 0..20 {
        let machine = Machine::new(seed, Box::new(MemoryState::default()));
        machine.world.start(FaultRates::default(), None);
        let mut server = SimServer::start(&machine.world, &machine.disk, &machine.state).unwrap();
        Arc::get_mut(&mut server.worker.core).unwrap().config.checkpoint_every = 1;
        while !machine.all_done() {
            machine.clients.iter().for_each(|client| client.borrow_mut().step(&server, &machine.corrupted));
            server.work();
        }
        let seen = |client: &RefCell<Client>, wanted: fn(&v1::event::What) -> bool| {
            client.borrow().seen.iter().filter(|event| event.what.as_ref().is_some_and(wanted)).count()
        };
        // Weights, lookahead and momentum for every checkpoint; for every verdict the start of the next epoch and what is kept, too;
        // logits; and at the end what is handed out.
        let model = 3 * toy_executor::PARTS;
        let rounds = |client| seen(client, |what| matches!(what, v1::event::What::Validation(_)));
        let most: usize = machine
            .clients
            .iter()
            .map(|client| {
                let kept = (client.borrow().training.agreement.patience + 1) * toy_executor::PARTS;
                rounds(client) * (1 + model + kept) + kept
            })
            .sum();
        let checkpoints = server.worker.core.metrics.checkpoints.load(std::sync::atomic::Ordering::Relaxed) as usize;
        assert!(checkpoints > machine.clients.iter().map(rounds).sum(), "seed {seed}");
        assert!(server.encoded.get() <= model * checkpoints + most, "seed {seed}: {} encoded", server.encoded.get());
        // Whatever a job ended by, nothing of it is left that nobody names.
        cancelled += machine.clients.iter().filter(|client| client.borrow().end == Some(JobState::Cancelled)).count();
        assert_eq!(collect_garbage(&*server.state, &*server.blobs, &server.uploads.staging).unwrap(), 0, "seed {seed}");
    }
    assert!(cancelled > 0);
}

/// A server without faults whose jobs all wait for verdicts, without workers.
fn server_awaiting_verdicts(seed: u64, state: Box<dyn State>) -> (Machine, SimServer) {
    let machine = Machine::new(seed, state);
    machine.world.start(FaultRates::default(), None);
    let server = SimServer::start(&machine.world, &machine.disk, &machine.state).unwrap();
    let asked = |client: &RefCell<Client>| client.borrow().question.is_some();
    while !machine.clients.iter().all(asked) {
        machine.clients.iter().filter(|c| !asked(c)).for_each(|c| c.borrow_mut().step(&server, &machine.corrupted));
        server.work();
    }
    (machine, server)
}

/// Whoever stores something for a job that has ended meanwhile, or is gone, takes it away again.
#[test]
fn a_worker_that_lost_its_job_leaves_nothing() {
    for deleted in [false, true] {
        let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
        let client = machine.clients[0].borrow();
        let (tenant, id, now) = (&client.tenant, client.job.unwrap(), machine.world.now());
        server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
        let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
        let attempt = server.worker.begin_attempt(&claim);
        machine.world.advance_clock(1000 * LEASE as i64 + 1);
        cancel_job(&*server.state, &*server.blobs, tenant, id, machine.world.now()).unwrap();
        if deleted {
            delete_job(&*server.state, &*server.blobs, tenant, id).unwrap();
        }
        let told = server.blobs.list(tenant, Namespace::Job(id)).unwrap();
        server.blobs.put(&Key::new(tenant, Namespace::Job(id), name_of(b"late")), b"late").unwrap();
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &Err(Error::Fenced))).unwrap();
        assert_eq!(server.blobs.list(tenant, Namespace::Job(id)).unwrap(), told);
        assert_eq!(told.is_empty(), deleted, "logits that were told of stay with the job");
    }
}

/// A card that fails ends no job: its checkpoint is kept, its owner is told, and the next worker goes on from there when it has rested.
/// However often memory is lacking, that does not count; a card that breaks at every attempt does.
#[test]
fn a_lost_card_loses_no_job() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id) = (&client.tenant, client.job.unwrap());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    let stored = server.blobs.list(tenant, Namespace::Job(id)).unwrap();
    let before = server.state.job(tenant, id).unwrap();
    assert!(before.checkpoint.is_some() && !stored.is_empty());
    let most = server.worker.core.config.bounds.attempts;
    let fails = |is_full, counted| {
        let claim = || {
            let now = machine.world.now();
            server.state.claim("local", now, now + 1000 * LEASE).unwrap()
        };
        if server.state.job(tenant, id).unwrap().state == JobState::Queued {
            assert_eq!(claim(), None, "it rests");
            machine.world.advance_clock(MAX_BACKOFF as i64);
        }
        let claim = claim().unwrap();
        let attempt = server.worker.begin_attempt(&claim);
        assert_eq!((claim.attempts, server.worker.check_runnable(&attempt).unwrap()), (counted, None));
        let lost = Err(Error::Device { reason: "an illegal address".to_owned(), is_full });
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &lost)).unwrap();
        server.state.job(tenant, id).unwrap()
    };
    let failures = (0..2 * most).map(|_| (true, 1)).chain((1..most).map(|attempt| (false, attempt)));
    for (is_full, attempt) in failures {
        let job = fails(is_full, attempt);
        assert_eq!((job.state, &job.checkpoint), (JobState::Queued, &before.checkpoint));
        let resting = v1::Progress { resting: true, ..before.progress.unwrap() };
        assert_eq!(job.progress, Some(resting), "its owner is told, and how far it was");
        assert_eq!(server.blobs.list(tenant, Namespace::Job(id)).unwrap(), stored);
    }
    assert_eq!(server.worker.core.metrics.device_failures.load(Ordering::Relaxed), u64::from(3 * most - 1));
    assert_eq!(fails(false, most).state, JobState::Failed);
}

/// An owner who wants the job to end does not wait for a card that failed.
#[test]
fn a_lost_card_keeps_no_job_from_its_end() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id, now) = (&client.tenant, client.job.unwrap(), machine.world.now());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    cancel_job(&*server.state, &*server.blobs, tenant, id, now).unwrap();
    server.state.release_worker("local").unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    let lost = Err(Error::Device { reason: "an illegal address".to_owned(), is_full: false });
    let attempt = server.worker.begin_attempt(&claim);
    server.worker.record_end(&attempt, server.worker.next_state(&attempt, &lost)).unwrap();
    assert_eq!(server.state.job(tenant, id).unwrap().state, JobState::Cancelled);
}

/// Nobody is told that a job began before its keys are here: where they have no room that may take days.
#[test]
fn a_job_begins_when_its_keys_are_here() {
    let machine = Machine::new(1, Box::new(MemoryState::default()));
    machine.world.start(FaultRates::default(), None);
    let server = SimServer::start(&machine.world, &machine.disk, &machine.state).unwrap();
    let mut client = machine.clients[0].borrow_mut();
    client.training.set = "insecure-toy11".to_owned();
    while client.job.is_none() {
        client.step(&server, &machine.corrupted);
    }
    let (tenant, now) = (client.tenant.clone(), machine.world.now());
    server.blobs.delete(&Key::new(&tenant, Namespace::Uploads, client.training.keys)).unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    server.worker.run_attempt(&claim, ComputeDevice::Cpu);
    let events = server.state.events(&tenant, client.job.unwrap(), 0, 9).unwrap();
    let whats: Vec<_> = events.into_iter().filter_map(|event| event.what).collect();
    assert!(matches!(&whats[..], [v1::event::What::Queued(_), v1::event::What::Failed(_)]), "{whats:?}");
}

/// However long there is no room on the disk, that costs a job nothing but time; whoever no longer wants it has its end.
#[test]
fn a_full_disk_loses_no_job() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let (tenant, id) = (&client.tenant, client.job.unwrap());
    server.state.judge(tenant, id, 1, Verdict::Continue).unwrap();
    let checkpoint = server.state.job(tenant, id).unwrap().checkpoint;
    let fails = |attempt| {
        machine.world.advance_clock(MAX_BACKOFF as i64);
        let now = machine.world.now();
        let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
        assert_eq!((claim.attempts, claim.backoffs), (1, attempt));
        let full = Error::System { what: "a blob".to_owned(), reason: "no space left".to_owned() };
        let attempt = server.worker.begin_attempt(&claim);
        server.worker.record_end(&attempt, server.worker.next_state(&attempt, &Err(full))).unwrap();
        server.state.job(tenant, id).unwrap()
    };
    for attempt in 0..100 {
        let job = fails(attempt);
        assert_eq!((job.state, &job.checkpoint), (JobState::Queued, &checkpoint));
    }
    let job = cancel_job(&*server.state, &*server.blobs, tenant, id, machine.world.now()).unwrap();
    assert_eq!(job.state, JobState::Cancelled);
}

/// A server that is stopped keeps every iteration, also the last of an epoch, and the attempt does not count.
#[test]
fn a_stopped_server_loses_no_iteration() {
    let (mut after_an_epoch, mut released) = (0, 0);
    for seed in 0..200 {
        let machine = Machine::new(seed, Box::new(MemoryState::default()));
        machine.world.start(FaultRates::default(), None);
        let mut server = SimServer::start(&machine.world, &machine.disk, &machine.state).unwrap();
        Arc::get_mut(&mut server.worker.core).unwrap().config.checkpoint_every = u64::MAX;
        let client = &machine.clients[0];
        while client.borrow().job.is_none() {
            client.borrow_mut().step(&server, &machine.corrupted);
        }
        let (tenant, id) = (client.borrow().tenant.clone(), client.borrow().job.unwrap());
        let server = Rc::new(server);
        let (other, mut left) = (Rc::clone(&server), machine.world.below(5));
        let stop = move || {
            left = left.saturating_sub(1);
            other.worker.draining.store(left == 0, Ordering::Relaxed);
        };
        interleaved(stop, || server.work());
        let job = server.state.without_faults().job(&tenant, id).unwrap();
        let done = server.worker.core.metrics.iterations.load(Ordering::Relaxed);
        let stored = job.checkpoint.as_ref().map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert_eq!(stored.map_or(0, |stored| stored["iterations"].as_u64().unwrap()), done, "seed {seed}");
        if job.state == JobState::Queued {
            released += 1;
            after_an_epoch += u32::from(done == client.borrow().training.batches.len() as u64);
            let now = machine.world.now();
            let claim = server.state.without_faults().claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
            assert_eq!((claim.job.id, claim.attempts), (id, 1), "seed {seed}");
        }
    }
    assert!(released > 20 && after_an_epoch > 5, "{released} {after_an_epoch}");
}

/// A card that does not answer ends the process; a CPU that takes long does not, nor does whatever comes before the card.
#[test]
fn a_card_that_hangs_is_not_waited_for() {
    let (machine, server) = server_awaiting_verdicts(1, Box::new(MemoryState::default()));
    let client = machine.clients[0].borrow();
    let now = machine.world.now();
    server.state.judge(&client.tenant, client.job.unwrap(), 1, Verdict::Continue).unwrap();
    let claim = server.state.claim("local", now, now + 1000 * LEASE).unwrap().unwrap();
    let attempt = server.worker.begin_attempt(&claim);
    for (device, turned, ends) in [
        (ComputeDevice::Cpu, false, None),
        (ComputeDevice::Gpu(0), false, None),
        (ComputeDevice::Cpu, true, None),
        (ComputeDevice::Gpu(0), true, Some(ShutdownReason::GpuHung { seconds: 0 })),
    ] {
        if turned {
            attempt.start_device_watch();
        }
        let shutdown = ShutdownSignal::default();
        std::thread::scope(|scope| {
            let (working, stopped) = std::sync::mpsc::channel();
            let watch = scope.spawn(|| attempt.renew_lease(stopped, device, &shutdown));
            if ends.is_none() {
                std::thread::sleep(Duration::from_millis(2500));
                drop(working);
                watch.join().unwrap();
            } else {
                let until = std::time::Instant::now() + Duration::from_secs(20);
                while !watch.is_finished() && std::time::Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(20));
                }
                drop(working);
            }
        });
        assert_eq!(shutdown.reason(), ends.as_ref());
    }
}

/// A row of which nobody knows whose it is ends all the same, and keeps no other job from its end.
#[test]
fn an_unreadable_job_keeps_no_other_waiting() {
    let dir = hetal_testkit::TempDir::new();
    let path = dir.path().join("state.sqlite");
    let seed = (0..).find(|&seed| Machine::new(seed, Box::new(MemoryState::default())).clients.len() > 1).unwrap();
    let (machine, server) = server_awaiting_verdicts(seed, Box::new(SqliteState::open(&path).unwrap()));
    let ids: Vec<_> = machine.clients.iter().map(|client| client.borrow().job.unwrap()).collect();
    let broken = "UPDATE jobs SET tenant = 'No Tenant' WHERE id = ?1";
    rusqlite::Connection::open(&path).unwrap().execute(broken, [&ids[0].0[..]]).unwrap();
    VerdictTimeouts::new(0).expire_overdue(&server.worker).unwrap();
    let now = machine.world.now();
    assert_eq!(server.state.waiting(now, now + 1000 * LEASE).unwrap(), []);
    for (client, id) in machine.clients.iter().zip(&ids).skip(1) {
        assert_eq!(server.state.job(&client.borrow().tenant, *id).unwrap().state, JobState::Failed);
    }
}

/// The same over the state that servers really have.
#[test]
fn acknowledged_work_survives_in_the_database() {
    let totals = simulate(1_000_000..1_000_100, || Box::new(SqliteState::in_memory().unwrap()));
    println!("{totals:?}");
}
