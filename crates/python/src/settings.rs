//! What an estimator was given: a project folder, a server, hyper-parameters.

use crate::errors::{Error, Result};
use crate::events::Event;
use hetal_client::data::{ClassWeight, Preparation};
use hetal_client::project::ServerSettings;
use hetal_client::rpc::Remote;
use hetal_client::{Cancellation, Connection, Labelled, Project};
use hetal_keys::{Passphrase, secret_file};
use hetal_learn::{Scaling, Wishes};
use hetal_local::LocalServer;
use hetal_server::config::EngineChoice;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;
use zeroize::Zeroizing;

/// The parameters of an estimator, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct EstimatorSettings {
    pub project: PathBuf,
    pub param_set: Option<String>,
    pub server: Option<String>,
    pub authority: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub passphrase: Option<String>,
    pub name: Option<String>,
    pub replace: bool,
    pub learning_rate: Option<f64>,
    pub batch_size: Option<usize>,
    pub max_epochs: Option<usize>,
    pub patience: Option<usize>,
    pub check_every: Option<usize>,
    pub alpha: Option<f64>,
    pub class_weight: Option<ClassWeights>,
    pub prior: f64,
    pub scale: String,
    pub verify: bool,
    pub validation_fraction: Option<f64>,
    pub random_state: Option<u64>,
}

/// The weights of classes.
#[derive(FromPyObject)]
pub enum ClassWeights {
    /// The word balanced.
    Word(String),
    /// A weight for each class, in the order of the classes.
    Given(Vec<f64>),
}

/// The folder of the server on this machine, in the project folder.
const LOCAL_SERVER: &str = "local-server";
/// The time between two attempts to lock a project folder.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

impl EstimatorSettings {
    /// Opens the project folder. If another process or thread uses it, waits until it ends.
    pub fn open_project(&self, events: &Sender<Event>, cancellation: &Cancellation) -> Result<Project> {
        let mut told = false;
        loop {
            match Project::open(&self.project, self.param_set.as_deref()) {
                Err(hetal_client::Error::InUse { folder }) => {
                    if !std::mem::replace(&mut told, true) {
                        events.send(Event::Waiting(folder.display().to_string())).ok();
                    }
                    if cancellation.is_requested() {
                        return Err(hetal_client::Error::Cancelled.into());
                    }
                    std::thread::sleep(LOCK_PAUSE);
                }
                project => {
                    let mut project = project?;
                    project.set_cancellation(cancellation.clone());
                    self.set_passphrase(&mut project)?;
                    return Ok(project);
                }
            }
        }
    }

    /// Opens an existing project folder for reading.
    pub fn read_project(&self) -> Result<Project> {
        let mut project = Project::open_without_lock(&self.project)?;
        self.set_passphrase(&mut project)?;
        Ok(project)
    }

    /// The passphrase unlocks the secret key, or locks a new one.
    pub fn set_passphrase(&self, project: &mut Project) -> Result<()> {
        let path = project.secret();
        let Some(text) = &self.passphrase else { return Ok(()) };
        if project.has_secret() && !secret_file::is_locked(&path)? {
            return Err(Error::Parameter(format!(
                "the secret key {} exists and has no passphrase: leave passphrase out, or make a new key with \
                 `hetal keys rotate --passphrase` in a shell",
                path.display()
            )));
        }
        project.set_passphrase(Some(Passphrase::new(Zeroizing::new(text.clone()))?));
        Ok(())
    }

    /// The hyper-parameters to ask the server for.
    pub fn wishes(&self) -> Wishes {
        Wishes {
            batch: self.batch_size,
            rate: self.learning_rate,
            patience: self.patience,
            max_epochs: self.max_epochs,
            alpha: self.alpha,
            check_every: self.check_every,
            ..Wishes::default()
        }
    }

    /// How rows are prepared.
    pub fn preparation(&self) -> Result<Preparation> {
        let scaling = match self.scale.as_str() {
            "auto" => None,
            name => Some(Scaling::named(name).ok_or_else(|| {
                Error::Parameter(format!("scale is {name:?}, must be auto, none, standard, unit-row or sqrt"))
            })?),
        };
        Ok(Preparation { scaling, ..Preparation::default() })
    }

    /// Multiplies the weights of rows by those of their classes.
    pub fn weigh_classes(&self, rows: &mut Labelled) -> Result<()> {
        let weights = match &self.class_weight {
            None => return Ok(()),
            Some(ClassWeights::Word(word)) if word == "balanced" => ClassWeight::Balanced,
            Some(ClassWeights::Given(weights)) if weights.len() == rows.labels.classes().len() => {
                ClassWeight::ByClass(rows.labels.classes().into_iter().zip(weights.iter().copied()).collect())
            }
            Some(_) => return Err(Error::Defect("weights of classes".to_owned())),
        };
        weights.apply(rows, None).map_err(hetal_client::Error::from)?;
        Ok(())
    }

    /// The server that was named, if one was: `None` stands for one on this machine.
    pub fn named_server(&self, project: &Project) -> Result<Option<(Connection, ServerSettings)>> {
        let connection = Connection {
            server: self.server.clone(),
            authority: self.authority.clone(),
            token_file: self.token_file.clone(),
            certificate: self.certificate.clone(),
        };
        if self.server.is_some() {
            let settings = connection.settings(project.settings().server.as_ref())?;
            return Ok(Some((connection, settings)));
        }
        let given = [
            ("authority", self.authority.is_some()),
            ("token_file", self.token_file.is_some()),
            ("certificate", self.certificate.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Error::Parameter(format!(
                "{name} is given, but no server: name the server it is for, as server=\"host:port\""
            ))),
            None => Ok(None),
        }
    }

    /// Connects to a server that was named.
    pub fn connect(
        (connection, settings): (Connection, ServerSettings),
        project: &mut Project,
        events: &Sender<Event>,
        cancellation: &Cancellation,
    ) -> Result<Remote> {
        let mut remote = connection.open(&settings, cancellation.clone())?;
        let breaks = events.clone();
        remote.on_break(move |reason| {
            breaks.send(Event::Broken(reason.to_owned())).ok();
        });
        Connection::remember(project, &remote, settings)?;
        Ok(remote)
    }

    /// Starts a server on this machine and connects to it.
    pub fn start_server(
        project: &Project,
        prepared_gib: f64,
        cancellation: &Cancellation,
    ) -> Result<(LocalServer, Remote)> {
        let server = LocalServer::start(hetal_local::LocalServerOptions {
            folder: server_folder(project),
            set: &project.settings().set,
            engine: EngineChoice::Auto,
            prepared_gib,
        })?;
        let remote = Remote::connect_until(server.address(), cancellation.clone())?;
        Ok((server, remote))
    }
}

/// The folder of the server on this machine. It is absolute, because the server outlives a change
/// of the current folder.
fn server_folder(project: &Project) -> PathBuf {
    let root: &Path = project.root();
    std::path::absolute(root).unwrap_or_else(|_| root.to_owned()).join(LOCAL_SERVER)
}
