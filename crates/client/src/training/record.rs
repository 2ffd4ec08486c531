//! A training as it is on disk.

use super::finish::BEST;
use super::hyper_parameters::expected_terms;
use super::{Options, Round, Seconds, Step};
use crate::ciphertexts::row_blobs::{self, Upload};
use crate::keys::hex;
use crate::project::{KeySet, io, remove_if_there};
use crate::rpc::{Job, JobId, Remote, Terms};
use crate::{Error, Layout, Owner, Result, Task};
use hetal_learn::judge::wider;
use hetal_learn::{Judge, Verdict, Wishes};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

const VERSION: u32 = 2;

/// A training as it is on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// The rows it is about.
    fingerprint: String,
    layout: String,
    pub keys: String,
    pub wishes: Wishes,
    pub batches: Vec<Upload>,
    pub validation: Vec<Upload>,
    /// The job on a server, once it was asked for.
    pub job: Option<JobRecord>,
    /// Payload bytes that really left: keys and rows.
    pub sent: (u64, u64),
    pub seconds: Seconds,
    /// Whether it began with new keys because it was told to.
    #[serde(default)]
    pub fresh_keys: bool,
    pub finished: bool,
}

/// A job that was asked for, and what was said about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobRecord {
    pub server: String,
    /// Names the wish for a job, so that asking twice makes one.
    pub request: String,
    /// What was agreed on.
    #[serde(default)]
    pub terms: Terms,
    pub id: Option<String>,
    pub judge: Option<Judge>,
    pub range: f64,
    pub rounds: Vec<Round>,
    /// What the server was caught at.
    #[serde(default)]
    pub fault: Option<String>,
}

impl JobRecord {
    pub fn new(server: &str, request: [u8; 16], terms: Terms) -> Self {
        let (server, request, range) = (server.to_owned(), hex(&request), terms.range);
        Self { server, request, terms, id: None, judge: None, range, rounds: Vec::new(), fault: None }
    }

    /// Takes a job's name. Of another job than before nothing is known: its rounds are judged from the first.
    pub fn belongs_to(&mut self, job: &Job) {
        let id = job.id.to_string();
        if self.id.as_ref().is_some_and(|known| *known != id) {
            (self.judge, self.range, self.rounds) = (None, self.terms.range, Vec::new());
        }
        self.id = Some(id);
    }

    /// Takes a round.
    pub fn judged(&mut self, round: Round) {
        if round.verdict == Verdict::WidenRange {
            self.range = wider(self.range).unwrap_or(self.range);
        }
        self.rounds.push(round);
    }
}

impl Record {
    /// Encrypts all rows: they are on disk before the first of them leaves.
    pub fn begin(
        owner: &Owner,
        layout: &Layout,
        task: &Task,
        keys: &KeySet,
        wishes: Wishes,
        folder: &Path,
        report: &mut (dyn FnMut(Step) + Send),
    ) -> Result<Self> {
        let start = Instant::now();
        let training = layout.pieces(task.training.rows());
        let validation = row_blobs::ranges(task.validation.rows(), layout.geometry().rows());
        let all = training.len() + validation.len();
        let mut done = 0;
        let mut encrypt = |set, rows, with_labels, name: &str| -> Result<Upload> {
            report(Step::Encrypting(done, all));
            let file = format!("{name}-{done:04}.ct");
            done += 1;
            row_blobs::encrypt(owner, layout, set, rows, with_labels, folder, file)
        };
        let batches = training.into_iter().map(|r| encrypt(&task.training, r, true, "batch")).collect::<Result<_>>()?;
        let validation =
            validation.into_iter().map(|r| encrypt(&task.validation, r, false, "validation")).collect::<Result<_>>()?;
        report(Step::Encrypting(all, all));
        Ok(Self {
            version: VERSION,
            fingerprint: task.fingerprint(),
            layout: layout.key(),
            keys: keys.blob.clone(),
            wishes,
            batches,
            validation,
            job: None,
            sent: (0, 0),
            seconds: Seconds { encrypting: start.elapsed().as_secs_f64(), ..Seconds::default() },
            fresh_keys: false,
            finished: false,
        })
    }

    /// Whether it is about these rows and wishes, under whatever keys.
    pub fn is_about(&self, task: &Task, layout: &Layout, wishes: &Wishes) -> bool {
        self.version == VERSION
            && self.layout == layout.key()
            && self.wishes == *wishes
            && self.fingerprint == task.fingerprint()
    }

    /// The training as it goes on. One that has ended begins again with the rows that are encrypted already; one whose server was caught
    /// goes on with another server only, or where its owner says so.
    pub fn taken_up(mut self, remote: &Remote, options: &Options) -> Result<Self> {
        if self.finished {
            let seconds = Seconds { encrypting: self.seconds.encrypting, ..Seconds::default() };
            return Ok(Self { job: None, sent: (0, 0), seconds, finished: false, ..self });
        }
        let Some(job) = &mut self.job else { return Ok(self) };
        let moved = job.server != remote.server();
        match &job.fault {
            Some(_) if moved || options.replace => self.job = None,
            Some(what) => return Err(Error::KnownHostile { what: what.clone() }),
            // The same server under another address knows the request; to another one it is a new one, on its own terms.
            None if moved => {
                job.server = remote.server().to_owned();
                job.terms = expected_terms(&self.wishes, remote.offer())?;
            }
            None => {}
        }
        Ok(self)
    }

    /// Whether it can go on with the rows that were encrypted: they are on disk, or a job was asked for, which no one does before the server
    /// has them all. `thoroughly` compares every byte: what is to be replaced is not taken at its word.
    pub fn can_be_sent(&self, folder: &Path, thoroughly: bool) -> bool {
        let is_there = self.job.is_some() && !self.finished && !thoroughly;
        is_there || self.batches.iter().chain(&self.validation).all(|u| row_blobs::is_whole(folder, u, thoroughly))
    }

    pub fn row_bytes(&self) -> u64 {
        self.batches.iter().chain(&self.validation).map(|upload| upload.bytes).sum()
    }
}

/// Ends the job of a training that is replaced, and removes its files: what is on disk never says that others are there.
pub(super) fn give_up(record: Option<Record>, remote: &Remote, folder: &Path) -> Result<()> {
    if let Some(Record { job: Some(JobRecord { id: Some(id), .. }), finished: false, .. }) = &record
        && let Ok(id) = id.parse::<JobId>()
    {
        // It may be gone already, or another server's, to whom its name says nothing; if it is not, it ends by its own limits.
        let _ = remote.cancel(id);
    }
    remove_if_there(&folder.join("job.json"))?;
    for entry in std::fs::read_dir(folder).map_err(|e| io("reading", folder, &e))? {
        let path = entry.map_err(|e| io("reading", folder, &e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Encrypted rows; logits and weights, whole or on their way; what the best epoch was judged by.
        if name == BEST || name.ends_with(".ct") || name.ends_with(".ct.part") {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}
