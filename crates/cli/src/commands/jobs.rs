//! `hetal jobs`, `hetal status`, `hetal cancel` and `hetal delete`: jobs on the server.

use crate::args::PROJECT_FOLDER;
use crate::args::connection::ConnectionArguments;
use crate::terminal::output::print;
use crate::{Error, Result};
use hetal_client::Project;
use hetal_client::rpc::{JobId, JobInfo, JobState, Remote};
use hetal_client::training::{self, Deleted};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `hetal jobs`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The project folder.
    #[arg(long, default_value = PROJECT_FOLDER)]
    pub dir: PathBuf,
    /// The server.
    #[command(flatten)]
    pub connection: ConnectionArguments,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `hetal status`, `hetal cancel` and `hetal delete`.
#[derive(clap::Args, Debug)]
pub struct JobArguments {
    /// The job, as listed by `hetal jobs`: its id, or the first digits of it.
    pub job: String,
    /// The project and the server.
    #[command(flatten)]
    pub common: Arguments,
}

/// Lists jobs.
pub fn list(arguments: &Arguments) -> Result<()> {
    let mut project = Project::open_without_lock(&arguments.dir)?;
    let remote = arguments.connection.connect(&mut project)?;
    let jobs = remote.jobs().map_err(hetal_client::Error::from)?;
    let text = if jobs.is_empty() { "no jobs".to_owned() } else { table(&jobs, now()) };
    print(arguments.json, &Value::from(jobs.iter().map(value).collect::<Vec<_>>()), &text);
    Ok(())
}

/// Shows one job.
pub fn status(arguments: &JobArguments) -> Result<()> {
    one(arguments, Remote::job, state)
}

/// Cancels one job.
pub fn cancel(arguments: &JobArguments) -> Result<()> {
    one(arguments, Remote::cancel, cancelled)
}

/// What became of a job that was asked to end: a worker ends it at its next step.
fn cancelled(job: JobState) -> &'static str {
    if job.has_ended() { state(job) } else { "is being cancelled" }
}

/// Deletes one job and the uploads that only it uses.
pub fn delete(arguments: &JobArguments) -> Result<()> {
    let common = &arguments.common;
    let mut project = Project::existing(&common.dir)?;
    let remote = common.connection.connect(&mut project)?;
    let id = job_id(&arguments.job, &remote)?;
    let Deleted { training, finished, uploads, kept } = training::delete(&project, &remote, id)?;
    let value =
        json!({ "job": id.to_string(), "training": training, "uploads_deleted": uploads, "uploads_kept": kept });
    let stays = if finished {
        "Its model stays in this project and still classifies on this machine, but not with --remote. The \
         encrypted rows stay in this project too."
    } else {
        "It had not finished, so it has no model. The encrypted rows stay in this project for the next `hetal train`."
    };
    let what = match training {
        Some(name) => format!(
            "deleted on the server: job {id} of {name} and {uploads} uploads ({kept} more are used by other jobs)\n{stays}"
        ),
        None => format!(
            "deleted on the server: job {id}. This project does not know its uploads, so they stay on the server"
        ),
    };
    print(common.json, &value, &what);
    Ok(())
}

/// The job of this id, or the only one whose id begins like this.
fn job_id(text: &str, remote: &Remote) -> Result<JobId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let invalid = || Error::JobName { name: text.to_owned() };
    if text.len() < LEAST_DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(invalid());
    }
    let jobs = remote.jobs().map_err(hetal_client::Error::from)?;
    begins_with(&jobs, text).ok_or_else(invalid)
}

/// The only job whose id begins with this text.
fn begins_with(jobs: &[JobInfo], text: &str) -> Option<JobId> {
    let mut fitting = jobs.iter().filter(|job| job.id.to_string().starts_with(&text.to_ascii_lowercase()));
    fitting.next().filter(|_| fitting.next().is_none()).map(|job| job.id)
}

fn one(
    arguments: &JobArguments,
    call: impl FnOnce(&Remote, JobId) -> hetal_client::rpc::Result<JobInfo>,
    state: fn(JobState) -> &'static str,
) -> Result<()> {
    let mut project = Project::open_without_lock(&arguments.common.dir)?;
    let remote = arguments.common.connection.connect(&mut project)?;
    let id = job_id(&arguments.job, &remote)?;
    let job = call(&remote, id).map_err(hetal_client::Error::from)?;
    let text = format!("{}  {:20} {}{}", job.id, job.label, state(job.state), details(&job));
    print(arguments.common.json, &value(&job), &text);
    Ok(())
}

/// Digits of a shown id, unless two jobs have them in common.
const SHOWN_DIGITS: usize = 8;
/// The fewest digits that name a job.
const LEAST_DIGITS: usize = 4;

/// Seconds since 1970.
fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A line for each job, newest first.
fn table(jobs: &[JobInfo], now: u64) -> String {
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    let is_unique = |digits: &usize| {
        let beginnings: std::collections::BTreeSet<&str> = ids.iter().map(|id| &id[..*digits]).collect();
        beginnings.len() == ids.len()
    };
    let digits = (SHOWN_DIGITS..32).find(is_unique).unwrap_or(32);
    let line = |(place, job): (usize, &JobInfo)| {
        // The oldest job of an owner is the last of the list and the first to run.
        let before = jobs[place + 1..].iter().filter(|job| job.state == JobState::Queued).count();
        let queue = match (job.state, before) {
            (JobState::Queued, 0) => " (the next of yours)".to_owned(),
            (JobState::Queued, before) => format!(" (after {before} of yours)"),
            _ => String::new(),
        };
        let age = age(now.saturating_sub(job.created));
        format!("{}  {:20} {age:>7}  {}{queue}{}\n", &ids[place][..digits], job.label, state(job.state), details(job))
    };
    format!("{:digits$}  {:20} {:>7}  state\n", "job", "label", "age")
        + &jobs.iter().enumerate().map(line).collect::<String>()
}

/// A time in one unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queued",
        JobState::Running => "running",
        JobState::Waiting => "waiting for a verdict",
        JobState::Finished => "finished",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

/// The name of a state in JSON.
fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        other => self::state(other),
    }
}

fn value(job: &JobInfo) -> Value {
    json!({
        "job": job.id.to_string(),
        "label": job.label,
        "state": state_name(job.state),
        "epoch": job.progress.as_ref().map(|p| p.epoch),
        "iterations": job.progress.as_ref().map(|p| p.iterations),
        "resting": is_resting(job),
        "created": job.created,
        "updated": job.updated,
        "reason": job.reason,
    })
}

/// Whether the job waits until the server's GPU works again.
fn is_resting(job: &JobInfo) -> bool {
    job.state == JobState::Queued && job.progress.as_ref().is_some_and(|p| p.resting)
}

/// The progress of a job, or why it failed.
fn details(job: &JobInfo) -> String {
    let progress =
        job.progress.as_ref().map_or_else(String::new, |p| format!(", epoch {}, {} iterations", p.epoch, p.iterations));
    let reason = match job.reason.as_str() {
        "" if is_resting(job) => ": waits at its last checkpoint until the server's GPU works again".to_owned(),
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    format!("{progress}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u8, state: JobState, created: u64) -> JobInfo {
        let (label, reason) = ("model".to_owned(), String::new());
        JobInfo { id: JobId([id; 16]), label, state, terms: None, progress: None, created, updated: created, reason }
    }

    #[test]
    fn jobs_have_short_ids_ages_and_a_place_in_the_queue() {
        let jobs = [
            job(4, JobState::Queued, 9_990),
            job(3, JobState::Queued, 9_000),
            job(2, JobState::Running, 1_000),
            job(1, JobState::Finished, 0),
        ];
        let text = table(&jobs, 10_000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "job       label                    age  state");
        assert_eq!(lines[1], "04040404  model                   10 s  queued (after 1 of yours)");
        assert_eq!(lines[2], "03030303  model                 16 min  queued (the next of yours)");
        assert_eq!(lines[3], "02020202  model                    2 h  running");
        assert_eq!(lines[4], "01010101  model                    2 h  finished");
        assert_eq!(begins_with(&jobs, "0303"), Some(JobId([3; 16])));
        assert_eq!((begins_with(&jobs, "0"), begins_with(&jobs, "0505")), (None, None));
    }

    /// Ids that begin alike are shown with more digits.
    #[test]
    fn ids_stay_distinct() {
        let mut other = [1; 16];
        other[7] = 2;
        let jobs = [job(1, JobState::Running, 0), JobInfo { id: JobId(other), ..job(1, JobState::Running, 0) }];
        let text = table(&jobs, 0);
        assert!(text.contains("\n0101010101010101  ") && text.contains("\n0101010101010102  "), "{text}");
    }

    /// A worker notices some time later that its job was cancelled. Until then the server says
    /// what the job does.
    #[test]
    fn a_job_that_is_being_cancelled_does_not_wait_for_a_verdict() {
        assert_eq!(cancelled(JobState::Waiting), "is being cancelled");
        assert_eq!(cancelled(JobState::Running), "is being cancelled");
        assert_eq!(cancelled(JobState::Cancelled), "cancelled");
        assert_eq!(cancelled(JobState::Finished), "finished");
    }
}
