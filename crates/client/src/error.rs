//! What can go wrong on the data owner's side.

use crate::data::files::FileProblem;
use std::path::PathBuf;

/// The result of an operation of the data owner.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong on the data owner's side, and what would help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of features or labels that cannot be used.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// The system failed.
    #[error("{operation} {}: {message}", .path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// A folder that another program works in.
    #[error("another hetal works in {}: wait for it or stop it, or choose another --dir", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder that is no project.
    #[error("{} is no project folder: give the --dir of an earlier command, or train first", .folder.display())]
    NoProject {
        /// The folder.
        folder: PathBuf,
    },
    /// A project of another parameter set.
    #[error("the project in {} has parameter set {has}, not {asked}: choose another --dir", .folder.display())]
    OtherSet {
        /// The folder.
        folder: PathBuf,
        /// Its set.
        has: String,
        /// The set asked for.
        asked: String,
    },
    /// A file of a newer program.
    #[error("{} has version {found}, this program knows {known}: use a newer one", .path.display())]
    NewerFile {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known.
        known: u32,
    },
    /// A state file that cannot be understood.
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A name that is none.
    #[error("{name:?} is no name: take letters, digits, - and _, at most 64")]
    Name {
        /// What was given.
        name: String,
    },
    /// Rows without labels.
    #[error("the features come without labels: give --labels FILE or --label-column NAME")]
    NoLabels,
    /// Rows to validate on without labels.
    #[error(
        "the rows to validate on come without labels: give --validation-labels FILE, or --label-column where it names theirs too"
    )]
    NoValidationLabels,
    /// Rows that cannot be used.
    #[error("{file}: {error}")]
    Rows {
        /// Where they are from.
        file: String,
        /// What is wrong with them.
        error: Box<Error>,
    },
    /// A label that no training row has.
    #[error("row {row}: no training row has the label {label:?}")]
    UnknownClass {
        /// The row, counted from 1.
        row: usize,
        /// Its label.
        label: String,
    },
    /// Nothing can be set aside for validation.
    #[error("every class has one row only, so none can be set aside: give rows for validation, or more rows")]
    TooFewRows,
    /// A model file that is not there.
    #[error("there is no model {}: train one first, or give the name of another", .path.display())]
    NoModel {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Rows of another kind than the model was trained on.
    #[error("rows have {found} features, the model was trained on {expected}: extract them in the same way")]
    FeatureCount {
        /// Features of the rows.
        found: usize,
        /// Features of the model.
        expected: usize,
    },
    /// A feature that is no number.
    #[error("row {row}, column {column} of the features: {value} is not a finite number")]
    NotFinite {
        /// The row, counted from 1.
        row: usize,
        /// The column, counted from 1.
        column: usize,
        /// What is there.
        value: f64,
    },
    /// A training of the same name with other rows or wishes was interrupted.
    #[error(
        "a training named {name} with other rows, settings or keys was interrupted: finish it with those, give this one another --name, or \
         --replace it"
    )]
    OtherTraining {
        /// The name.
        name: String,
    },
    /// A training was interrupted under keys that this version does not use.
    #[error(
        "the training {name} was interrupted with keys of an earlier version of this program, with which it cannot go on: finish it with that \
         version, on a server of that version, or begin it again with --replace"
    )]
    OldKeys {
        /// The name.
        name: String,
    },
    /// A training was interrupted under keys that are not there any more.
    #[error(
        "the training {name} was interrupted with keys that were replaced since, without which it cannot go on: begin it again with --replace"
    )]
    Stranded {
        /// The name.
        name: String,
    },
    /// A model of this name is there.
    #[error("there is a model named {name}: give another --name, or --replace it")]
    ModelExists {
        /// The name.
        name: String,
    },
    /// The server does not know the parameter set.
    #[error(
        "this project's keys are of parameter set {set}, which the server does not accept; it accepts {offered}. Ask its operator to allow {set}, \
         or train in another --dir with a set that it accepts"
    )]
    SetRefused {
        /// The set.
        set: String,
        /// What it accepts.
        offered: String,
    },
    /// What no honest server sends. Where it waited for a verdict it was told to stop, as it would be after any last epoch.
    #[error(
        "the server sent what no honest server sends: {what}. Nothing more was asked of it; do not trust this server"
    )]
    Hostile {
        /// What it sent.
        what: String,
    },
    /// A training during which the server was caught.
    #[error(
        "the server of this training sent what no honest server sends: {what}. It is not asked again: train with another server, or \
         --replace the training if you must"
    )]
    KnownHostile {
        /// What it sent.
        what: String,
    },
    /// More verdicts by default than anyone should give.
    #[error(
        "the server's defaults are {epochs} epochs with a patience of {patience}: each epoch tells it two bits about what is decrypted here. \
         Ask for fewer with --epochs and --patience (at most {most_epochs} and {most_patience} are taken without a word)"
    )]
    TooManyEpochs {
        /// Its default.
        epochs: usize,
        /// Its default.
        patience: usize,
        /// What is taken without a word.
        most_epochs: usize,
        /// What is taken without a word.
        most_patience: usize,
    },
    /// A name in a state file that is none.
    #[error("the training's record is damaged: {what}. Start again with --replace")]
    Protocol {
        /// What is wrong.
        what: String,
    },
    /// The server gave up.
    #[error(
        "the server could not finish the job: {reason}. Run the command again to start anew with the rows already sent"
    )]
    JobFailed {
        /// Its words.
        reason: String,
    },
    /// The job was cancelled.
    #[error("the job was cancelled. Run the command again to start anew with the rows already sent")]
    JobCancelled,
    /// No epoch was accepted.
    #[error("no epoch ended with logits in range: try a lower --rate")]
    NothingLearned,
    /// The secret key's file is gone.
    #[error(
        "the secret key of this project, {}, is gone: bring it back (`hetal keys restore FILE` from a backup), or give --fresh-keys to begin anew \
         with another one", .path.display()
    )]
    SecretLost {
        /// Where it was.
        path: PathBuf,
    },
    /// No secret key was ever made.
    #[error("this project has no secret key yet ({}): `hetal keygen` or `hetal train` makes one", .path.display())]
    NoSecret {
        /// Where it would be.
        path: PathBuf,
    },
    /// The secret key's file holds another secret.
    #[error(
        "{} holds another secret key than this project was made with: move it away and put the right one back (`hetal keys restore FILE`)",
        .path.display()
    )]
    OtherSecret {
        /// The file.
        path: PathBuf,
    },
    /// A backup of another secret key.
    #[error(
        "{} is the backup of another secret key than this project was made with: give the right one, or restore it in another --dir",
        .file.display()
    )]
    OtherBackup {
        /// The backup.
        file: PathBuf,
    },
    /// A new secret key would lie open where the old one was locked.
    #[error(
        "the secret key before this one was locked with a passphrase, so the new one is: run the command again with --passphrase-file FILE, with \
         HETAL_PASSPHRASE set, or in a terminal"
    )]
    Unlocked,
    /// A rotation of the keys was interrupted.
    #[error("the keys of this project were being replaced when the program ended: run `hetal keys rotate` again first")]
    HalfRotated,
    /// A model of another secret key.
    #[error("model {model} was trained under another secret key than the project's of today: {help}")]
    OtherKeyModel {
        /// The model.
        model: String,
        /// What to do.
        help: &'static str,
    },
    /// More numbers than can be counted.
    #[error("{models} models of {numbers} numbers are too many to plan for: give fewer --models")]
    TooManyModels {
        /// Models.
        models: u64,
        /// Numbers of each.
        numbers: u64,
    },
    /// The system gave no random bytes.
    #[error("the system gives no random bytes: {reason}")]
    Randomness {
        /// Its words.
        reason: String,
    },
    /// A model that was never compared with exact training.
    #[error(
        "nobody knows how noisy this model is, because it was not compared with exact training: train it again without --no-check, on a server \
         that does not hide its hyper-parameters"
    )]
    NoiseUnknown,
    /// A model noisier than those for which the release was planned.
    #[error(
        "this model's noise of {noise:e} is above the {released:e} that releases under this key count on: use --fresh-keys"
    )]
    Noisier {
        /// Its bound.
        noise: f64,
        /// What was planned for.
        released: f64,
    },
    /// Another release was asked for than the first one fixed.
    #[error(
        "the first export under this secret key fixed what may be published under it: {numbers} numbers in all at --security {security}. \
         Leave --models and --security out, or train again with --fresh-keys"
    )]
    ReleaseFixed {
        /// Numbers in all.
        numbers: u64,
        /// Bits of security.
        security: u32,
    },
    /// The server or the way to it.
    #[error(transparent)]
    Remote(#[from] crate::rpc::Error),
    /// A thread ended before its work did.
    #[error("the work was interrupted")]
    Interrupted,
    /// The server's GPU failed, and it was not waited for.
    #[error("the server's GPU failed: the job rests at its last checkpoint")]
    Resting,
    /// The scheme refused.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// The secret key is missing, damaged or unsafe.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// Training refused.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
}

impl Error {
    /// What a server was caught at that no honest one does: the training ends with the word `stop`.
    pub fn misbehaviour(&self) -> Option<String> {
        match self {
            Self::Hostile { what } => Some(what.clone()),
            Self::Remote(error @ (crate::rpc::Error::Size { .. } | crate::rpc::Error::Damaged { .. })) => {
                Some(error.to_string())
            }
            _ => None,
        }
    }

    pub(crate) fn hostile(what: impl Into<String>) -> Self {
        Self::Hostile { what: what.into() }
    }
}
