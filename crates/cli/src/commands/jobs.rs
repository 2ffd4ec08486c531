//! `hetal jobs`, `hetal status`, `hetal cancel` and `hetal delete`: jobs on the server.

use crate::args::PROJECT_FOLDER;
use crate::args::connection::Connection;
use crate::ui::output::print;
use crate::{Error, Result};
use hetal_client::Project;
use hetal_client::rpc::{JobId, JobInfo, JobState};
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
    pub connection: Connection,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `hetal status`, `hetal cancel` and `hetal delete`.
#[derive(clap::Args, Debug)]
pub struct JobArguments {
    /// The job, as listed by `hetal jobs`.
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
    let text: String = jobs.iter().map(|job| line(job) + "\n").collect();
    let text = if jobs.is_empty() { "no jobs".to_owned() } else { text };
    print(arguments.json, &Value::from(jobs.iter().map(value).collect::<Vec<_>>()), &text);
    Ok(())
}

/// Shows one job.
pub fn status(arguments: &JobArguments) -> Result<()> {
    one(arguments, |remote, id| remote.job(id))
}

/// Cancels one job.
pub fn cancel(arguments: &JobArguments) -> Result<()> {
    one(arguments, |remote, id| remote.cancel(id))
}

/// Deletes one job and the uploads that only it uses.
pub fn delete(arguments: &JobArguments) -> Result<()> {
    let (id, common) = (job_id(&arguments.job)?, &arguments.common);
    let mut project = Project::existing(&common.dir)?;
    let remote = common.connection.connect(&mut project)?;
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

fn job_id(text: &str) -> Result<JobId> {
    text.parse().map_err(|_| Error::JobName { name: text.to_owned() })
}

fn one(
    arguments: &JobArguments,
    call: impl FnOnce(&hetal_client::rpc::Remote, JobId) -> hetal_client::rpc::Result<JobInfo>,
) -> Result<()> {
    let id = job_id(&arguments.job)?;
    let mut project = Project::open_without_lock(&arguments.common.dir)?;
    let remote = arguments.common.connection.connect(&mut project)?;
    let job = call(&remote, id).map_err(hetal_client::Error::from)?;
    print(arguments.common.json, &value(&job), &line(&job));
    Ok(())
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

fn line(job: &JobInfo) -> String {
    let progress =
        job.progress.as_ref().map_or_else(String::new, |p| format!(", epoch {}, {} iterations", p.epoch, p.iterations));
    let reason = match job.reason.as_str() {
        "" if is_resting(job) => ": waits at its last checkpoint until the server's GPU works again".to_owned(),
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    format!("{}  {:20} {}{progress}{reason}", job.id, job.label, state(job.state))
}
