//! A machine of the simulation: what outlives a process, and its schedule of faults.

use super::LEASE;
use super::client::{Client, ClientStage, Clients, Corrupted, path};
use super::disk::{SimDisk, SimDiskHandle};
use super::fault_injector::{FaultInjector, FaultRates, interleaved};
use super::server::{SimServer, root};
use super::state::SimState;
use crate::store::blobs::Namespace;
use crate::store::state::{JobState, State};
use hetal_wire::{BlobName, v1};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Everything that outlives a process.
pub struct Machine {
    pub faults: Arc<FaultInjector>,
    pub disk: SimDiskHandle,
    pub state: Arc<SimState>,
    pub clients: Clients,
    pub corrupted: Corrupted,
}

/// Counts of what happened in the schedules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub lives: u64,
    pub cuts: u64,
    pub corrupted: u64,
    pub healed: u64,
    pub operations: u64,
    pub finished: u64,
    pub failed: u64,
    pub cancelled: u64,
    /// Checks that were thrown away by a verdict that went back.
    pub discarded: u64,
    /// Schedules with such checks.
    pub rolled_back: u64,
}

impl Machine {
    pub fn new(seed: u64, state: Box<dyn State>) -> Self {
        let faults = Arc::new(FaultInjector::new(seed));
        let disk = SimDiskHandle(Arc::new(SimDisk::new(&faults, root())));
        let state = Arc::new(SimState::new(&faults, state));
        let tenants = ["ann", "bob", "ann"];
        let count = 1 + faults.below(tenants.len());
        let clients = (0..count).map(|n| RefCell::new(Client::new(&faults, n as u8, tenants[n]))).collect();
        Self { faults, disk, state, clients: Rc::new(clients), corrupted: Corrupted::default() }
    }

    pub fn all_done(&self) -> bool {
        self.clients.iter().all(|c| c.borrow().stage == ClientStage::Done)
    }

    /// Runs server processes until all clients are done. The first few processes are killed.
    pub fn run(&self) -> Totals {
        let (faults, mut totals) = (&self.faults, Totals::default());
        let forced = faults.below(8) as u64;
        let mut corruptions_left = if faults.chance(150) { 1 } else { 0 };
        while !self.all_done() || totals.lives <= forced {
            let left = (totals.lives < forced).then(|| 1 + faults.below(400));
            let rates = if left.is_some() {
                FaultRates { fault: faults.below(15), full: faults.below(4) }
            } else {
                FaultRates::default()
            };
            faults.start(rates, left);
            self.run_process(left.is_some(), &mut corruptions_left);
            for client in self.clients.iter() {
                client.borrow_mut().stream = None;
            }
            if faults.chance(500) {
                self.disk.0.cut_power();
                totals.cuts += 1;
            }
            self.check();
            totals.lives += 1;
        }
        self.check_final_state();
        totals.healed = self.clients.iter().map(|client| u64::from(client.borrow().healed)).sum();
        totals.corrupted = self.corrupted.borrow().len() as u64 + totals.healed;
        totals.operations = faults.operations();
        totals.discarded = self.clients.iter().map(|client| client.borrow().discarded).sum();
        totals.rolled_back = u64::from(totals.discarded > 0);
        for client in self.clients.iter() {
            match client.borrow().end {
                Some(JobState::Finished) => totals.finished += 1,
                Some(JobState::Failed) => totals.failed += 1,
                _ => totals.cancelled += 1,
            }
        }
        totals
    }

    pub fn check(&self) {
        for client in self.clients.iter() {
            client.borrow().check(&self.disk.0, self.state.without_faults(), &self.corrupted);
        }
    }

    /// Runs one process until it ends or nothing is left to do.
    pub fn run_process(&self, forced: bool, corruptions_left: &mut usize) {
        let Ok(server) = SimServer::start(&self.faults, &self.disk, &self.state).map(Rc::new) else { return };
        for turn in 0.. {
            if !self.faults.is_alive() || !forced && self.all_done() || forced && turn > 500 {
                return;
            }
            assert!(turn < 20_000, "nothing gets done any more");
            if *corruptions_left > 0 && self.faults.chance(20) {
                *corruptions_left -= 1;
                self.corrupt_bit();
            }
            let (other, clients, corrupted) =
                (Rc::clone(&server), Rc::clone(&self.clients), Rc::clone(&self.corrupted));
            interleaved(move || act(&other, &clients, &corrupted), || act(&server, &self.clients, &self.corrupted));
        }
    }

    /// Flips a bit of a stored blob.
    pub fn corrupt_bit(&self) {
        if let Some(path) = self.disk.0.corrupt_bit(&root().join("blobs/tenants")) {
            let name = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            self.corrupted.borrow_mut().insert(name);
        }
    }

    /// Checks the end: after another power cut, the referenced files exist and no others.
    pub fn check_final_state(&self) {
        self.disk.0.cut_power();
        self.faults.start(FaultRates::default(), None);
        let server = SimServer::start(&self.faults, &self.disk, &self.state).unwrap();
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

/// One actor acts: a client that is not busy, a worker, or the clock.
pub fn act(server: &SimServer, clients: &Clients, corrupted: &Corrupted) {
    match server.faults.below(20) {
        0..=12 => {
            if let Ok(mut client) = clients[server.faults.below(clients.len())].try_borrow_mut() {
                client.step(server, corrupted);
            }
        }
        13..=18 => server.work(),
        _ => server.faults.advance_clock(match server.faults.below(4) {
            0 => 1000 * LEASE as i64 + 1,
            1 => -1000 * LEASE as i64,
            2 => 366 * 24 * 3_600_000,
            _ => -366 * 24 * 3_600_000,
        }),
    }
}

/// A server without faults whose jobs all wait for verdicts, without workers.
pub fn server_awaiting_verdicts(seed: u64, state: Box<dyn State>) -> (Machine, SimServer) {
    let machine = Machine::new(seed, state);
    machine.faults.start(FaultRates::default(), None);
    let server = SimServer::start(&machine.faults, &machine.disk, &machine.state).unwrap();
    let asked = |client: &RefCell<Client>| client.borrow().question.is_some();
    while !machine.clients.iter().all(asked) {
        machine.clients.iter().filter(|c| !asked(c)).for_each(|c| c.borrow_mut().step(&server, &machine.corrupted));
        server.work();
    }
    (machine, server)
}

pub fn simulate(seeds: impl Iterator<Item = u64>, state: impl Fn() -> Box<dyn State>) -> Totals {
    let mut all = Totals::default();
    for seed in seeds {
        let guard = PrintSeedOnPanic(seed);
        let totals = Machine::new(seed, state()).run();
        drop(guard);
        all.lives += totals.lives;
        all.cuts += totals.cuts;
        all.corrupted += totals.corrupted;
        all.healed += totals.healed;
        all.operations += totals.operations;
        all.finished += totals.finished;
        all.failed += totals.failed;
        all.cancelled += totals.cancelled;
        all.discarded += totals.discarded;
        all.rolled_back += totals.rolled_back;
    }
    all
}

/// Prints the seed of a failed schedule.
pub struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was HETAL_SEED={}", self.0);
        }
    }
}

pub fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}
