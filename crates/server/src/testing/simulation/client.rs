//! A client of the simulation, which checks what it is told.

use super::QUOTA;
use super::disk::SimDisk;
use super::fault_injector::FaultInjector;
use super::server::{SimServer, root};
use super::toy_executor;
use super::toy_executor::{Expected, expected};
use crate::jobs::lifecycle::{cancel_job, delete_job};
use crate::jobs::spec::{JobSpec, RowBlob, TrainingSpec};
use crate::store::blobs::{BlobKey, Namespace, name_of, read};
use crate::store::state::{BlobKind, EventLimit, JobState, NewJob, State, Upload, visit_events};
use crate::store::uploads::{Resumed, UploadWriter};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_learn::{AgreementLimits, KeyPlan, RowForm, Verdict};
use hetal_wire::{BlobName, JobId, v1};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStage {
    Send(usize),
    Create,
    Follow,
    DeleteJob,
    DeleteUpload(usize),
    Done,
}

/// A client, and everything it was told.
pub struct Client {
    pub tenant: Tenant,
    pub number: u8,
    pub files: Vec<(BlobKind, Vec<u8>)>,
    pub training: TrainingSpec,
    pub expected: Expected,
    pub cancels_at: Option<u32>,
    pub deletes: bool,
    pub stage: ClientStage,
    pub stream: Option<UploadWriter>,
    pub uploaded: BTreeSet<BlobName>,
    pub job: Option<JobId>,
    pub seen: Vec<v1::Event>,
    pub question: Option<u32>,
    /// Checks that were announced and then thrown away, because a verdict went back.
    pub discarded: u64,
    pub judged: Vec<u32>,
    pub cancelled: bool,
    pub end: Option<JobState>,
    /// How often an upload was found damaged and sent again.
    pub healed: u8,
    /// Whether the job failed for a damaged upload, so that everything is sent again.
    pub heals: bool,
}

/// The verdict of a client on a round, a fixed function of both. Every client goes back several
/// times, and stops if its training is long enough.
pub fn verdict(number: u8, round: u32) -> Verdict {
    use Verdict::{Continue, LowerRate, Stop, WidenRange};
    let verdicts = match number {
        0 => [Continue, WidenRange, Continue, LowerRate, Continue, Continue, Continue, Stop],
        1 => [LowerRate, Continue, Continue, WidenRange, WidenRange, Continue, Stop, Continue],
        _ => [Continue, Continue, LowerRate, Continue, WidenRange, LowerRate, Continue, Continue],
    };
    verdicts.get(round as usize - 1).copied().unwrap_or(Continue)
}

/// Whether the training goes back at a round: no client of the simulation widens or lowers more
/// often than a server allows.
fn goes_back(number: u8, round: u32) -> bool {
    matches!(verdict(number, round), Verdict::LowerRate | Verdict::WidenRange)
}

impl Client {
    pub fn new(faults: &FaultInjector, number: u8, tenant: &str) -> Self {
        let file = |kind, n: usize| {
            let size = 56 + faults.below(200);
            (kind, (0..size).map(|i| (i * 31 + n * 7 + usize::from(number) * 101) as u8).collect::<Vec<_>>())
        };
        let batches = 1 + faults.below(3);
        let mut files = vec![file(BlobKind::Keys, 0)];
        files.extend((1..=batches).map(|n| file(BlobKind::Batch, n)));
        files.push(file(BlobKind::Features, 9));
        let name = |n: usize| name_of(&files[n].1);
        let row_blob = |n: usize| RowBlob { blob: name(n), rows: 1 };
        let mut agreement = AgreementLimits::default().defaults;
        (agreement.patience, agreement.max_epochs) = (1 + faults.below(2), 1 + faults.below(5));
        agreement.check_every = faults.below(4);
        let training = TrainingSpec {
            set: "toy".to_owned(),
            features: 4,
            classes: 3,
            keys: name(0),
            batches: (1..=batches).map(row_blob).collect(),
            validation: vec![row_blob(batches + 1)],
            agreement,
            form: RowForm::Slots,
            key_plan: KeyPlan::Fast,
        };
        Self {
            tenant: tenant.to_owned().try_into().unwrap(),
            number,
            expected: expected(&training, |round| verdict(number, round)),
            files,
            training,
            cancels_at: faults.chance(150).then(|| 1 + faults.below(3) as u32),
            deletes: faults.chance(400),
            stage: ClientStage::Send(0),
            stream: None,
            uploaded: BTreeSet::new(),
            job: None,
            seen: Vec::new(),
            question: None,
            discarded: 0,
            judged: Vec::new(),
            cancelled: false,
            end: None,
            healed: 0,
            heals: false,
        }
    }

    pub fn name(&self, file: usize) -> BlobName {
        name_of(&self.files[file].1)
    }

    /// Makes one request, whose response may be lost.
    pub fn step(&mut self, server: &SimServer, corrupted: &Corrupted) {
        let lost = server.faults.chance(50);
        let done = match self.stage {
            ClientStage::Send(file) => self.send(server, corrupted, file, lost),
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

    pub fn send(&mut self, server: &SimServer, corrupted: &Corrupted, file: usize, lost: bool) -> Result<()> {
        let (kind, bytes) = (self.files[file].0, self.files[file].1.clone());
        let (name, size) = (name_of(&bytes), bytes.len() as u64);
        let Some(mut writer) = self.stream.take() else {
            let wanted = Upload { name, kind, size, complete: false };
            let progress = server.uploads.begin(&self.tenant, &wanted, &QUOTA)?;
            if lost {
                return Ok(());
            }
            if progress.complete {
                self.acknowledge(file, corrupted);
                return Ok(());
            }
            match server.uploads.resume(&self.tenant, name, progress.received)? {
                Resumed::Complete(_) => self.acknowledge(file, corrupted),
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
            let end = (held + 1 + server.faults.below(100)).min(bytes.len());
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
        if server.faults.chance(900) {
            self.acknowledge(file, corrupted);
        }
        Ok(())
    }

    pub fn acknowledge(&mut self, file: usize, corrupted: &Corrupted) {
        self.uploaded.insert(self.name(file));
        if self.heals {
            // The damage is over, so from now on the content must be right.
            corrupted.borrow_mut().remove(&self.name(file));
        }
        self.stage = if file + 1 < self.files.len() { ClientStage::Send(file + 1) } else { ClientStage::Create };
    }

    pub fn create(&mut self, server: &SimServer, lost: bool) -> Result<()> {
        // The client chooses the id of the request. The server chooses the id of the job, a new one
        // each time.
        let mut id = [self.number; 16];
        id[1..9].copy_from_slice(&server.faults.operations().to_le_bytes());
        let (request, spec) = ([self.number + 16 * self.healed; 16], JobSpec::Training(self.training.clone()));
        let new = NewJob { id: JobId(id), request, body: [self.number; 32], label: String::new(), spec };
        let job = server.state.create_job(&self.tenant, &new, &QUOTA, server.faults.now())?;
        if !lost {
            (self.job, self.stage, self.heals) = (Some(job.id), ClientStage::Follow, false);
        }
        Ok(())
    }

    pub fn follow(&mut self, server: &SimServer, corrupted: &Corrupted, lost: bool) -> Result<()> {
        let id = self.job.unwrap();
        if let Some(round) = self.question {
            return self.answer(server, id, round, lost);
        }
        let limit = EventLimit { count: 3, bytes: usize::MAX };
        let events = server.state.events(&self.tenant, id, self.seen.len() as u64, limit)?;
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
            self.stage = if self.deletes || self.heals { ClientStage::DeleteJob } else { ClientStage::Done };
        }
        Ok(())
    }

    /// Handles an event. Fails if a blob cannot be read now.
    pub fn handle_event(
        &mut self,
        server: &SimServer,
        corrupted: &Corrupted,
        id: JobId,
        what: &v1::event::What,
    ) -> Result<()> {
        use v1::event::What;
        let fetch = |output: &v1::Output| {
            let name = BlobName::try_from(&output.blob[..]).unwrap();
            match read(&*server.blobs, &BlobKey::new(&self.tenant, Namespace::Job(id), name), toy_executor::MOST) {
                Err(Error::Damaged { .. }) if corrupted.borrow().contains(&name) => Ok(name),
                Err(error @ (Error::NoOutput { .. } | Error::Damaged { .. })) => panic!("{error}"),
                other => other.map(|_| name),
            }
        };
        match what {
            What::Validation(v) => {
                let logits = v.logits.iter().map(fetch).collect::<Result<Vec<_>>>()?;
                let repeats = (1..v.round).filter(|round| goes_back(self.number, *round)).count() as u32;
                assert!(v.repeats <= repeats, "round {} of a repeat that nobody asked for", v.round);
                if v.repeats < repeats {
                    self.discarded += 1;
                    return Ok(());
                }
                let stopped = (1..v.round).any(|round| verdict(self.number, round) == Verdict::Stop);
                if stopped || self.cancelled {
                    // The server ran ahead.
                    return Ok(());
                }
                assert_eq!(logits, self.expected.logits[v.round as usize - 1], "wrong logits of round {}", v.round);
                self.question = (!self.judged.contains(&v.round)).then_some(v.round);
            }
            What::Finished(f) => {
                let outputs = f.outputs.iter().map(|o| Ok((o.check, fetch(o)?))).collect::<Result<Vec<_>>>()?;
                assert_eq!(outputs, self.expected.outputs, "wrong weights");
                self.end = Some(JobState::Finished);
            }
            What::Failed(f) => {
                let named = corrupted.borrow().iter().any(|name| f.reason.contains(&name.to_string()));
                assert!(named, "a job failed though nothing that it names was damaged: {}", f.reason);
                self.end = Some(JobState::Failed);
                self.heals = (0..self.files.len()).any(|file| f.reason.contains(&self.name(file).to_string()));
            }
            What::Cancelled(_) => {
                assert!(self.cancelled, "nobody cancelled");
                self.end = Some(JobState::Cancelled);
            }
            _ => {}
        }
        Ok(())
    }

    pub fn answer(&mut self, server: &SimServer, id: JobId, round: u32, lost: bool) -> Result<()> {
        // A verdict takes its time, in which the server runs ahead.
        if server.faults.chance(700) {
            return Ok(());
        }
        if self.cancels_at == Some(round) {
            self.cancelled = true;
            cancel_job(&*server.state, &*server.blobs, &self.tenant, id, server.faults.now())?;
            self.question = None;
            return Ok(());
        }
        match server.state.judge(&self.tenant, id, round, verdict(self.number, round)) {
            Ok(_) if lost => {}
            Ok(_) => {
                self.judged.push(round);
                self.question = None;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub fn delete_job(&mut self, server: &SimServer, lost: bool) -> Result<()> {
        match delete_job(&*server.state, &*server.blobs, &self.tenant, self.job.unwrap()) {
            Ok(()) if lost => {}
            // An earlier request succeeded, and its response was lost.
            Ok(()) | Err(Error::NoJob { .. }) if self.heals => self.start_again(),
            Ok(()) | Err(Error::NoJob { .. }) => {
                self.job = None;
                self.stage = ClientStage::DeleteUpload(0);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends everything again and trains once more, after an upload was found damaged.
    fn start_again(&mut self) {
        (self.job, self.question, self.end, self.cancelled) = (None, None, None, false);
        self.uploaded.clear();
        self.seen.clear();
        self.judged.clear();
        self.healed += 1;
        self.stage = ClientStage::Send(0);
    }

    pub fn delete_upload(&mut self, server: &SimServer, file: usize, lost: bool) -> Result<()> {
        let name = self.name(file);
        // From now on the upload may be gone.
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

    /// Checks that everything the client was told still holds.
    pub fn check(&self, disk: &SimDisk, state: &dyn State, corrupted: &Corrupted) {
        for (_, bytes) in &self.files {
            let name = name_of(bytes);
            if self.uploaded.contains(&name) {
                let upload = state.upload(&self.tenant, name).unwrap();
                let damaged = corrupted.borrow().contains(&name);
                assert!(upload.is_some_and(|u| u.complete || damaged), "an acknowledged upload was forgotten");
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
        let mut events = Vec::new();
        visit_events(state, &self.tenant, id, |event| events.push(event)).unwrap();
        assert!(events.starts_with(&self.seen), "what was told has changed");
        for &round in &self.judged {
            assert_eq!(state.verdict(id, round).unwrap(), Some(verdict(self.number, round)), "a verdict was lost");
        }
    }
}

pub fn path(tenant: &Tenant, namespace: Namespace, name: BlobName) -> PathBuf {
    root().join("blobs/tenants").join(BlobKey::new(tenant, namespace, name).to_string())
}

pub type Corrupted = Rc<RefCell<BTreeSet<BlobName>>>;
pub type Clients = Rc<Vec<RefCell<Client>>>;
