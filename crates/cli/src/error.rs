//! Errors of the program: what happened, to which input, what to do.

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A passphrase was wished for a key that is there without one.
    #[error(
        "the secret key {} is there and is not locked: `hetal keys rotate --passphrase` makes a new, locked one", .path.display()
    )]
    NotLocked {
        /// The key.
        path: std::path::PathBuf,
    },
    /// An experiment failed.
    #[error(transparent)]
    Experiment(#[from] hetal_experiments::Error),
    /// The scheme refused.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// Training refused.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
    /// The data owner's side refused.
    #[error(transparent)]
    Client(#[from] hetal_client::Error),
    /// The embedded server failed.
    #[error(transparent)]
    Server(#[from] hetal_server::Error),
    /// The embedded server's GPU failed.
    #[error("the GPU cannot go on: {reason}. Nothing is lost: the same command goes on from the last checkpoint")]
    CardFailed {
        /// What the server saw.
        reason: String,
    },
    /// Not known where the server is.
    #[error("no server is known in this project: give --server HOST:PORT")]
    NoServer,
    /// Not known whose certificates to trust.
    #[error(
        "no certificate authority is known in this project: give --authority FILE, which the server's operator has"
    )]
    NoAuthority,
    /// Nothing to show to the server.
    #[error("no credentials: give --token-file FILE, or --certificate and --certificate-key, or set HETAL_TOKEN")]
    NoCredentials,
    /// The secret key refused.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// Two typings that differ.
    #[error("the two passphrases differ: nothing was made")]
    PassphrasesDiffer,
    /// No passphrase where one is needed.
    #[error(
        "a passphrase is needed: give --passphrase-file FILE, set HETAL_PASSPHRASE, or run in a terminal and type it"
    )]
    NoPassphrase,
    /// A job's name that is none.
    #[error("{name:?} is no job: `hetal jobs` lists them")]
    JobName {
        /// What was given.
        name: String,
    },
    /// A disk that is too full.
    #[error("{} needs {needs} of disk, {free} are free: make room or choose another --dir", .folder.display())]
    Disk {
        /// The folder.
        folder: std::path::PathBuf,
        /// What is needed.
        needs: String,
        /// What there is.
        free: String,
    },
    /// A plan of nothing.
    #[error("nothing to plan: give --features FILE (with labels), or --rows, --columns and --classes")]
    NothingToPlan,
    /// The system gave no random bytes.
    #[error("the system gives no random bytes: {reason}")]
    Randomness {
        /// Its words.
        reason: String,
    },
    /// The extractor is not there.
    #[error(
        "{} is needed to read pictures, sentences and data sets, and was not found {looked}: build it with `{}`, or set \
         HETAL_EXTRACT to its path",
        hetal_extract_api::protocol::PROGRAM,
        hetal_extract_api::BUILD_COMMAND
    )]
    NoExtractor {
        /// Where it was looked for.
        looked: String,
    },
    /// The extractor is another program, or of another version.
    #[error("{} {reason} (`{}` builds hetal-extract)", .path.display(), hetal_extract_api::BUILD_COMMAND)]
    OtherExtractor {
        /// The program.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The extractor could not be run.
    #[error("{}: {}", .path.display(), hetal_client::rpc::sanitize_terminal(.reason))]
    Extractor {
        /// The program.
        path: std::path::PathBuf,
        /// What happened.
        reason: String,
    },
    /// Features could not be extracted. Names of files are in the words, and files may come from anyone.
    #[error("{}", hetal_client::rpc::sanitize_terminal(.0))]
    Extraction(String),
    /// A manifest that cannot be used.
    #[error("{}", hetal_client::rpc::sanitize_terminal(&.0.to_string()))]
    Manifest(#[from] hetal_extract_api::manifest::Error),
    /// Pictures or texts for a classifier that knows of no network.
    #[error(
        "model {model} was trained on features of unknown origin, so pictures and texts cannot be turned into such: train on \
         what `hetal extract` writes (its manifest.json beside the features, or --manifest), or give --features"
    )]
    NoExtraction {
        /// The classifier.
        model: String,
    },
    /// A manifest of other features.
    #[error(
        "{path}: describes features of {described} columns, {features} has {found}: give the manifest of these features"
    )]
    OtherManifest {
        /// The manifest.
        path: String,
        /// The columns it speaks of.
        described: usize,
        /// The features.
        features: String,
        /// Their columns.
        found: usize,
    },
    /// A file that cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}
