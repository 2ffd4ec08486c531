//! What `hetal ui` answers: an overview, a page for each training, and the same as JSON.

use super::http::PageResponse;
use hetal_client::training::{files_of_unfinished, record_of_unfinished, unfinished};
use hetal_client::{Error, Model, Project, Result, report};
use hetal_keys::Passphrase;
use hetal_report::{Markup, Overview, ProjectOverview, Record, SCRIPT, STYLE, WATCH_STYLE, overview, shell, training};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// What a record was made from: when its files were written.
type Stamp = [Option<SystemTime>; 2];

/// The projects that are shown.
pub struct Pages {
    folders: Vec<PathBuf>,
    passphrase: Option<Passphrase>,
    /// Records, so that files are read, and perhaps unlocked, only when they have changed.
    known: Mutex<HashMap<(usize, String, bool), (Stamp, Record)>>,
}

impl Pages {
    /// Pages about projects.
    pub fn new(folders: Vec<PathBuf>, passphrase: Option<Passphrase>) -> Self {
        Self { folders, passphrase, known: Mutex::default() }
    }

    /// The answer to a request for a path behind the token.
    pub fn answer(&self, base: &str, path: &str, query: &str) -> PageResponse {
        match path {
            "style.css" => PageResponse::ok("text/css; charset=utf-8", format!("{STYLE}{WATCH_STYLE}")),
            "watch.js" => PageResponse::ok("text/javascript; charset=utf-8", SCRIPT),
            "" => {
                let all = self.overview();
                page(query, &all, || (overview(base, &all), "Trainings".to_owned()), base)
            }
            _ => match self.training(path) {
                Ok(Some(record)) => {
                    page(query, &record, || (training(base, &record), format!("{}: training", record.name)), base)
                }
                Ok(None) => PageResponse::missing("there is no such training"),
                Err(error) => PageResponse::missing(&error.to_string()),
            },
        }
    }

    fn open(&self, k: usize) -> Result<Project> {
        let mut project = Project::open_without_lock(&self.folders[k])?;
        project.set_passphrase(self.passphrase.clone());
        Ok(project)
    }

    /// The training of a path: the number of its project and its name.
    fn training(&self, path: &str) -> Result<Option<Record>> {
        let Some((k, name)) = path.split_once('/') else { return Ok(None) };
        let Some(k) = k.parse().ok().filter(|k| *k < self.folders.len()) else { return Ok(None) };
        let project = self.open(k)?;
        match self.in_progress(k, &project, name)? {
            Some(record) => Ok(Some(record)),
            None => self.finished(k, &project, name).map(Some),
        }
    }

    fn overview(&self) -> Overview {
        Overview { projects: (0..self.folders.len()).map(|k| self.project(k)).collect() }
    }

    fn project(&self, k: usize) -> ProjectOverview {
        let mut shown = ProjectOverview { folder: self.folders[k].display().to_string(), ..ProjectOverview::default() };
        let (project, names) = match self.open(k).and_then(|project| project.models().map(|names| (project, names))) {
            Ok(found) => found,
            Err(error) => {
                shown.problems.push(error.to_string());
                return shown;
            }
        };
        for name in unfinished(&project) {
            match self.in_progress(k, &project, &name) {
                Ok(record) => shown.unfinished.extend(record),
                Err(error) => shown.problems.push(format!("{name}: {error}")),
            }
        }
        for name in names {
            match self.finished(k, &project, &name) {
                Ok(record) => shown.models.push(record),
                Err(error) => shown.problems.push(format!("{name}: {error}")),
            }
        }
        shown.models.sort_by(|a, b| b.ended.cmp(&a.ended).then_with(|| a.name.cmp(&b.name)));
        shown
    }

    fn in_progress(&self, k: usize, project: &Project, name: &str) -> Result<Option<Record>> {
        // Its state is that of a process, so it is asked for each time.
        if !unfinished(project).iter().any(|one| one == name) {
            return Ok(None);
        }
        let stamp = stamp(&files_of_unfinished(project, name));
        let known = self.known(&(k, name.to_owned(), false), stamp);
        match known.filter(|_| project.passphrase().is_some()) {
            Some(record) => Ok(Some(record)),
            None => {
                let record = record_of_unfinished(project, name)?;
                Ok(record.map(|record| self.learn((k, name.to_owned(), false), stamp, record)))
            }
        }
    }

    fn finished(&self, k: usize, project: &Project, name: &str) -> Result<Record> {
        let files = report::files_of(project, name)?;
        let (key, stamp) = ((k, name.to_owned(), true), stamp(&files));
        if let Some(record) = self.known(&key, stamp) {
            return Ok(record);
        }
        if stamp[1].is_none() {
            return Err(Error::NoModel { path: files[1].clone() });
        }
        if Model::is_locked(&files[1]) && project.passphrase().is_none() {
            return Err(hetal_keys::Error::Locked { path: files[1].clone() }.into());
        }
        Ok(self.learn(key, stamp, report::of_name(project, name)?))
    }

    fn known(&self, key: &(usize, String, bool), stamp: Stamp) -> Option<Record> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(then, _)| *then == stamp).map(|(_, record)| record.clone())
    }

    fn learn(&self, key: (usize, String, bool), stamp: Stamp, record: Record) -> Record {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, (stamp, record.clone()));
        record
    }
}

fn stamp(files: &[PathBuf; 2]) -> Stamp {
    [0, 1].map(|k| std::fs::metadata(&files[k]).and_then(|file| file.modified()).ok())
}

/// The page of a value: whole, without what surrounds it, or as JSON.
fn page(query: &str, value: &impl Serialize, content: impl FnOnce() -> (Markup, String), base: &str) -> PageResponse {
    if query == "json" {
        return match serde_json::to_vec(value) {
            Ok(json) => PageResponse::ok("application/json", json),
            Err(error) => PageResponse::missing(&error.to_string()),
        };
    }
    let (content, title) = content();
    match query {
        "part" => PageResponse::ok("text/html; charset=utf-8", content.as_str()),
        _ => PageResponse::ok("text/html; charset=utf-8", shell(base, &title, &content)),
    }
}
