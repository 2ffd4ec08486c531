//! Errors on the data owner's side.

use std::path::PathBuf;

/// The result of an operation on the data owner's side.
pub type Result<T> = std::result::Result<T, Error>;

/// An error on the data owner's side. Every message says what happened and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of features or labels cannot be used.
    #[error(transparent)]
    Table(#[from] hetal_tables::Error),
    /// A file operation failed.
    #[error("{operation} {} failed: {message}", .path.display())]
    Io {
        /// The operation, as a participle: "reading".
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The message of the operating system.
        message: String,
    },
    /// Another process holds the lock of a folder.
    #[error("another hetal process is using {}: wait until it ends, or use another --dir", .folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder is not a project folder.
    #[error(
        "{} is not a project folder: use the --dir of an earlier command, or run `hetal train` first",
        .folder.display()
    )]
    NoProject {
        /// The folder.
        folder: PathBuf,
    },
    /// A project folder has lost its settings.
    #[error(
        "{} has the files of a project, but its project.json is missing: put it back from a backup of the folder. \
         Without one, copy secret.key elsewhere and restore it in a new --dir with `hetal keys restore FILE` (and \
         --set NAME, if the set was not full). The new project publishes nothing under this key, because what was \
         published before is unknown",
        .folder.display()
    )]
    SettingsLost {
        /// The folder.
        folder: PathBuf,
    },
    /// A project folder is not the one that its release budget belongs to.
    #[error(
        "{} is a copy of the folder in which its secret key was made, was moved to another disk or machine, or its key \
         was made by a version of hetal that did not record the folder. What may be published under a key is counted \
         in one folder: publish there. If there is no other folder with this key from which anyone publishes, run the \
         command again with --moved; otherwise train again with --fresh-keys",
        .folder.display()
    )]
    CopiedFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A project uses another parameter set.
    #[error("the project in {} uses parameter set {has}, not {asked}: use another --dir", .folder.display())]
    OtherSet {
        /// The folder.
        folder: PathBuf,
        /// The parameter set of the project.
        has: String,
        /// The requested parameter set.
        asked: String,
    },
    /// A file has a format version that this program does not know.
    #[error(
        "{} has format version {found}, and this program reads version {known}: use a newer release of hetal",
        .path.display()
    )]
    NewerFile {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// A state file cannot be parsed.
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why it cannot be parsed.
        reason: String,
    },
    /// A name cannot be used as a file name.
    #[error("invalid name {name:?}: use 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'")]
    Name {
        /// The name.
        name: String,
    },
    /// Training rows have no labels.
    #[error("the training rows have no labels: give --labels FILE or --label-column NAME")]
    NoLabels,
    /// Validation rows have no labels.
    #[error(
        "the validation rows have no labels: give --validation-labels FILE, or a --label-column that names \
         their column too"
    )]
    NoValidationLabels,
    /// Rows cannot be used.
    #[error("{file}: {error}")]
    Rows {
        /// The file of the rows.
        file: String,
        /// What is wrong with them.
        error: Box<Error>,
    },
    /// A label is not among the classes.
    #[error("row {row}: no training row has the label {label:?}: correct the label, or train with rows that have it")]
    UnknownClass {
        /// The row, counted from 1.
        row: usize,
        /// The label.
        label: String,
    },
    /// The share of the validation rows is not between 0 and 1.
    #[error("a validation share of {share} is not above 0 and below 1")]
    ValidationShare {
        /// The share.
        share: f64,
    },
    /// Weights of rows or classes cannot be used.
    #[error(transparent)]
    Weights(#[from] crate::data::WeightError),
    /// The server does not take keys of the wished plan.
    #[error("the server takes no keys of the key plan {plan}: choose another one, or leave the choice to the program")]
    KeyPlan {
        /// The plan.
        plan: &'static str,
    },
    /// The server does not take rows in the wished form.
    #[error("the server takes no rows in the form {form}: choose another one, or leave the choice to the program")]
    RowForm {
        /// The form.
        form: &'static str,
    },
    /// No row can be set aside for validation.
    #[error("every class has only one row, so none can be set aside for validation: give validation rows or more rows")]
    TooFewRows,
    /// A model file does not exist.
    #[error("model file {} not found: run `hetal train` first, or give the name of another model", .path.display())]
    NoModel {
        /// The expected path.
        path: PathBuf,
    },
    /// Rows have another number of features than the model.
    #[error(
        "the rows have {found} features, and the model was trained on {expected}: extract the features in the \
         same way as for the training"
    )]
    FeatureCount {
        /// Features of the rows.
        found: usize,
        /// Features of the model.
        expected: usize,
    },
    /// Validation rows have another number of features than training rows.
    #[error(
        "the validation rows have {found} features, and the training rows have {expected}: give the same columns in \
         both files"
    )]
    ValidationColumns {
        /// Features of the validation rows.
        found: usize,
        /// Features of the training rows.
        expected: usize,
    },
    /// Rows are too long for a query.
    #[error(
        "{}: more than {guard} times as long as the longest training row, too long for the encrypted circuit: \
         leave them out, or predict without --remote",
        outlier_rows(.rows, *.count)
    )]
    Outliers {
        /// The first such rows, counted from 1.
        rows: Vec<usize>,
        /// All such rows.
        count: usize,
        /// The longest allowed, in lengths of the longest training row.
        guard: f64,
    },
    /// A feature is infinite or not a number.
    #[error(
        "row {row}, column {column} of the features: {value} is not a finite number: correct it, or remove the row"
    )]
    NotFinite {
        /// The row, counted from 1.
        row: usize,
        /// The column, counted from 1.
        column: usize,
        /// The value.
        value: f64,
    },
    /// An interrupted training of the same name has other rows, settings or keys.
    #[error(
        "an interrupted training named {name} has other rows, settings or keys: finish it with those, give this \
         one another --name, or discard the interrupted one with --replace"
    )]
    OtherTraining {
        /// The name.
        name: String,
    },
    /// An interrupted training was begun by a version with another circuit.
    #[error(
        "the interrupted training {name} was begun by another version of this program and cannot continue: finish \
         it with that version of hetal and of the server, or start it again with --replace"
    )]
    OldTraining {
        /// The name.
        name: String,
    },
    /// An interrupted training uses keys that this version does not use.
    #[error(
        "the interrupted training {name} uses keys of an earlier version of this program and cannot continue: \
         finish it with that version of hetal and of the server, or start it again with --replace"
    )]
    OldKeys {
        /// The name.
        name: String,
    },
    /// The keys of an interrupted training no longer exist.
    #[error(
        "the interrupted training {name} uses keys that were replaced since and cannot continue: start it again \
         with --replace"
    )]
    Stranded {
        /// The name.
        name: String,
    },
    /// A key set that several interrupted trainings use is lost, here and on the server.
    #[error(
        "the key set {} is missing or was changed, the server does not have it, and the interrupted training(s) \
         {trainings} use it too: put the file back from a backup of the folder, or start this training again with \
         --replace, which makes a new key set. Then the others can only start again too",
        .path.display()
    )]
    KeySetLost {
        /// Its file.
        path: PathBuf,
        /// The names of the other trainings.
        trainings: String,
    },
    /// The key set of a model is lost, here and on the server.
    #[error(
        "the key set of model {model} is missing on {server} and in this project: put the file back from a backup of \
         the folder, predict without --remote, or train the model again"
    )]
    KeysOfModelLost {
        /// The model.
        model: String,
        /// The server.
        server: String,
    },
    /// The server does not know the job that trained a model.
    #[error(
        "{server} does not know the job of model {model}, which was trained on {trained_on}: give --server \
         {trained_on} if it is still there, predict without --remote, or train the model again"
    )]
    JobUnknown {
        /// The server.
        server: String,
        /// The model.
        model: String,
        /// The server that it was trained on.
        trained_on: String,
    },
    /// A model of the same name exists.
    #[error("a model named {name} exists: give another --name, or overwrite it with --replace")]
    ModelExists {
        /// The name.
        name: String,
    },
    /// The server does not accept the parameter set of the project.
    #[error(
        "the server does not accept parameter set {set} of this project; it accepts {offered}. Ask its operator \
         to allow {set}, or train in another --dir with --set and one of these"
    )]
    SetRefused {
        /// The parameter set of the project.
        set: String,
        /// The secure parameter sets that the server accepts and this program can train with.
        offered: String,
    },
    /// The server accepts no secure parameter set.
    #[error(
        "the server does not accept parameter set {set} of this project, nor any other secure set (it offers: \
         {offered}). Sets whose names begin with insecure- give NO SECURITY: they are for tests with public rows. \
         Ask the server's operator to allow {set}, or use another server"
    )]
    NoSecureSet {
        /// The parameter set of the project.
        set: String,
        /// The parameter sets that the server offers.
        offered: String,
    },
    /// The server sent something that no honest server sends. If it waited for a verdict, it was
    /// told to stop, as after any last check.
    #[error(
        "the server sent what no honest server sends: {what}. The training has been stopped; do not trust this server"
    )]
    Hostile {
        /// What it sent.
        what: String,
    },
    /// The server of this training was found to be hostile in an earlier run.
    #[error(
        "the server of this training sent what no honest server sends: {what}. It is not contacted again: train \
         with another server, or discard this training with --replace to use the same one"
    )]
    KnownHostile {
        /// What it sent.
        what: String,
    },
    /// The server's defaults ask for more verdicts than the client gives unasked.
    #[error(
        "the server's defaults are {epochs} epochs and a patience of {patience}, and each check reveals two bits \
         about decrypted values: ask for fewer with --epochs and --patience (defaults of at most {most_epochs} and \
         {most_patience} are accepted)"
    )]
    TooManyEpochs {
        /// Epochs by default.
        epochs: usize,
        /// Patience by default.
        patience: usize,
        /// The most epochs that are accepted as a default.
        most_epochs: usize,
        /// The largest patience that is accepted as a default.
        most_patience: usize,
    },
    /// A state file contains an invalid name of a blob or job.
    #[error("the record of the training is damaged: {what}. Start it again with --replace")]
    Protocol {
        /// What is wrong.
        what: String,
    },
    /// The judged rounds and the logits of the best check are lost.
    #[error(
        "{} is missing or damaged, and without it neither further checks nor the returned weights can be checked. Run \
         the command again: it starts a new job with the rows already sent",
        .path.display()
    )]
    JudgedLogitsLost {
        /// The file.
        path: PathBuf,
    },
    /// The job failed on the server.
    #[error(
        "the server could not finish the job: {reason}. Run the command again: it sends what the server has lost \
         and starts a new job with the other rows already sent"
    )]
    JobFailed {
        /// The reason that the server gives.
        reason: String,
    },
    /// The job was cancelled.
    #[error("the job was cancelled. Run the command again: it starts a new job with the rows already sent")]
    JobCancelled,
    /// No check was accepted.
    #[error("no check had logits in range: train again with a lower --rate")]
    NothingLearned,
    /// The file of the secret key is missing.
    #[error(
        "the secret key of this project, {}, is missing: restore it from a backup with `hetal keys restore FILE`, \
         or start with a new key by --fresh-keys",
        .path.display()
    )]
    SecretLost {
        /// Its path.
        path: PathBuf,
    },
    /// The project has no secret key yet.
    #[error(
        "this project has no secret key yet ({}): create one with `hetal keygen` or `hetal train`",
        .path.display()
    )]
    NoSecret {
        /// The path it will have.
        path: PathBuf,
    },
    /// The file of the secret key contains another key.
    #[error(
        "{} contains another secret key than the one this project was created with: move it away and restore the \
         right one with `hetal keys restore FILE`",
        .path.display()
    )]
    OtherSecret {
        /// The file.
        path: PathBuf,
    },
    /// A backup contains another secret key.
    #[error(
        "{} is a backup of another secret key than the one this project was created with: give the right backup, \
         or restore this one in another --dir",
        .file.display()
    )]
    OtherBackup {
        /// The backup.
        file: PathBuf,
    },
    /// A new secret key would have no passphrase, although its predecessor had one.
    #[error(
        "the previous secret key was locked with a passphrase, so the new one needs one too: run the command again \
         with --passphrase-file FILE, with HETAL_PASSPHRASE set, or in a terminal"
    )]
    Unlocked,
    /// A key rotation was interrupted.
    #[error("a rotation of this project's keys was interrupted: finish it with `hetal keys rotate` first")]
    HalfRotated,
    /// A model was trained under another secret key.
    #[error("model {model} was trained under another secret key than the project's current one: {help}")]
    OtherKeyModel {
        /// The model.
        model: String,
        /// What to do.
        help: &'static str,
    },
    /// The number of values to publish overflows.
    #[error("cannot plan releases for {models} models of {numbers} numbers each: give a smaller --models")]
    TooManyModels {
        /// Models.
        models: u64,
        /// Numbers of each.
        numbers: u64,
    },
    /// The operating system returned no random bytes.
    #[error("the operating system returned no random bytes: {reason}")]
    Randomness {
        /// Its message.
        reason: String,
    },
    /// A model of an earlier version was never compared with the plaintext reference.
    #[error(
        "the noise of this model is unknown: an earlier version trained it and did not compare it with the same training \
         without encryption. Train it again"
    )]
    NoiseUnknown,
    /// A server hides hyper-parameters.
    #[error(
        "the noise of this model cannot be estimated, because the server hides its learning rate: train it on a server \
         that does not"
    )]
    HiddenTerms,
    /// The noise of a parameter set was not measured.
    #[error("the noise of the parameter set {set} was not measured, so its models cannot be exported")]
    NoiseNotMeasured {
        /// The set.
        set: String,
    },
    /// The encrypted rows of a model are gone or damaged.
    #[error(
        "{}: this file of encrypted rows is not as the training of model {model} wrote it. An export needs it to estimate \
         the noise: train the model again", .file.display()
    )]
    RowsGone {
        /// The model.
        model: String,
        /// The file.
        file: PathBuf,
    },
    /// A release would lose too much accuracy.
    #[error(
        "at --security {security} the published model would be right on {:.2} % of the validation rows, the private one on \
         {:.2} %: {help}. --accept-loss publishes it nevertheless. Nothing was published", 100.0 * .released, 100.0 * .private
    )]
    AccuracyLost {
        /// Bits of security.
        security: u32,
        /// The accuracy of the private model.
        private: f64,
        /// The mean accuracy of simulated releases.
        released: f64,
        /// What to do.
        help: String,
    },
    /// A model has more noise than the release budget covers.
    #[error(
        "the noise of this model, {noise:e}, is above the {released:e} that releases under this key account for: \
         train it again with --fresh-keys"
    )]
    Noisier {
        /// The bound on its noise.
        noise: f64,
        /// The bound that the budget was planned for.
        released: f64,
    },
    /// An export asks for other limits than the first export fixed.
    #[error(
        "the first export under this secret key fixed its release budget: {numbers} numbers in all at --security \
         {security}. Leave out --models and --security, or train again with --fresh-keys"
    )]
    ReleaseFixed {
        /// Numbers in all.
        numbers: u64,
        /// Bits of security.
        security: u32,
    },
    /// The project has no server address.
    #[error("this project has no server yet: give --server HOST:PORT")]
    NoServer,
    /// The project has no certificate authority.
    #[error("this project has no certificate authority yet: give --authority FILE (ask the server's operator for it)")]
    NoAuthority,
    /// The command has no credentials for the server.
    #[error("no credentials: give --token-file FILE, or --certificate and --certificate-key, or set HETAL_TOKEN")]
    NoCredentials,
    /// A call to the server failed.
    #[error(transparent)]
    Remote(#[from] crate::rpc::Error),
    /// The caller asked for the end of the work.
    #[error("cancelled: the same command continues where it stopped")]
    Cancelled,
    /// A thread ended before its work was done.
    #[error("the work was interrupted: run the command again")]
    Interrupted,
    /// The server's GPU failed, and the caller does not want to wait.
    #[error("the server's GPU failed: the job is paused at its last checkpoint")]
    Resting,
    /// An operation of the CKKS scheme failed.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// The secret key is missing, damaged or unsafe.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// The learning library refused the input.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
}

impl Error {
    /// What the server did that no honest server does, if this error says so. Such a training ends
    /// with the verdict `stop`.
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

/// The words for rows that are too long.
fn outlier_rows(rows: &[usize], count: usize) -> String {
    let listed = rows.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match count {
        1 => format!("row {listed}"),
        _ if count > rows.len() => format!("{count} rows (the first are {listed})"),
        _ => format!("rows {listed}"),
    }
}
