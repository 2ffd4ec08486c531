//! Errors of the crates as exceptions of `hetal.errors`.

use hetal_client::Error as Client;
use hetal_client::data::tables;
use hetal_client::rpc::Error as Rpc;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The result of native work.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of native work.
#[derive(Debug)]
pub enum Error {
    /// The data owner's side failed.
    Client(Client),
    /// The server in this process failed, or the machine has too little for it.
    Local(hetal_local::Error),
    /// The GPU of the server in this process failed.
    GpuFailed(String),
    /// The program `hetal-extract` failed, or is missing.
    Extractor(String),
    /// Rows cannot be used.
    Data(tables::FileProblem),
    /// A parameter cannot be used.
    Parameter(String),
    /// A defect of this program.
    Defect(String),
}

macro_rules! from_client {
    ($($error:ty),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Client(error.into())
            }
        })*
    };
}

from_client!(Client, Rpc, hetal_keys::Error, hetal_learn::Error);

impl From<hetal_extract_api::extractor::Error> for Error {
    fn from(error: hetal_extract_api::extractor::Error) -> Self {
        Self::Extractor(error.to_string())
    }
}

impl From<hetal_local::Error> for Error {
    fn from(error: hetal_local::Error) -> Self {
        match error {
            hetal_local::Error::Client(error) => Self::Client(error),
            other => Self::Local(other),
        }
    }
}

impl Error {
    /// The name of the class in `hetal.errors`.
    fn class(&self) -> &'static str {
        match self {
            Self::Client(error) => client_class(error),
            Self::Local(hetal_local::Error::Memory { .. }) => "NotEnoughMemory",
            Self::Local(hetal_local::Error::Disk { .. } | hetal_local::Error::File { .. }) => "StorageError",
            Self::Local(_) => "HetalError",
            Self::GpuFailed(_) => "JobFailed",
            Self::Extractor(_) => "ExtractionFailed",
            Self::Data(_) | Self::Parameter(_) => "InvalidInput",
            Self::Defect(_) => "InternalError",
        }
    }

    fn message(&self) -> String {
        let text = match self {
            Self::Client(error) => error.to_string(),
            Self::Local(error) => error.to_string(),
            Self::GpuFailed(reason) => {
                format!("the GPU failed: {reason}. Run the same command again to continue from the last checkpoint")
            }
            Self::Extractor(text) => text.clone(),
            Self::Data(problem) => problem.to_string(),
            Self::Parameter(text) => text.clone(),
            Self::Defect(text) => format!("a defect of hetal, please report it: {text}"),
        };
        in_python(text)
    }

    /// The exception.
    pub fn to_py(&self, py: Python<'_>) -> PyErr {
        let raise = || -> PyResult<PyErr> {
            let class = py.import("hetal.errors")?.getattr(self.class())?;
            Ok(PyErr::from_type(class.cast_into::<PyType>()?, self.message()))
        };
        raise().unwrap_or_else(|error| error)
    }
}

/// The words of the program `hetal`, and what they are in Python.
const WORDS: [(&str, &str); 33] = [
    ("give --token-file FILE, or --certificate and --certificate-key,", "give token_file or certificate,"),
    ("give --passphrase-file FILE, set HETAL_PASSPHRASE, or type it in a terminal", "give passphrase"),
    ("with --passphrase-file FILE, with HETAL_PASSPHRASE set, or in a terminal", "with passphrase"),
    ("predict without --remote", "use predict"),
    ("with --set and one of these", "with param_set and one of these"),
    ("--server HOST:PORT", "server"),
    ("--authority FILE", "authority"),
    ("--validation gives others", "validation_fraction sets others aside"),
    ("choose some with --columns, or leave some out with --drop", "choose some of them"),
    ("at --security", "at security"),
    ("--scale decides", "scale decides"),
    ("--scale standard", "scale=\"standard\""),
    ("--prior", "prior"),
    ("--alpha", "alpha"),
    ("--fresh-keys", "new keys (`hetal keys rotate` in a shell)"),
    ("--epochs", "max_epochs"),
    ("--check-every", "check_every"),
    ("--server", "server"),
    ("--patience", "patience"),
    ("--replace", "replace=True"),
    ("--accept-loss", "`hetal model export --accept-loss` in a shell"),
    ("with `--models", "with `hetal model export --models"),
    ("--verify", "verify=True"),
    ("--remote", "predict_remote"),
    ("--moved", "`hetal model export --moved` in a shell"),
    ("--batch", "batch_size"),
    ("--rate", "learning_rate"),
    ("--name", "name"),
    ("--dir", "project"),
    ("--set NAME", "param_set"),
    ("the same command", "the same fit"),
    ("Run the command again", "Call the same method again"),
    ("run the command again", "call the same method again"),
];

/// What messages about a table's column end with: the program can leave columns out.
const DROP: &str = " with --drop ";

/// A message with the names of parameters instead of those of options.
pub fn in_python(text: String) -> String {
    let mut text = WORDS.iter().fold(text, |text, (option, parameter)| text.replace(option, parameter));
    if let Some(end) = text.rfind(DROP) {
        text.truncate(end);
    }
    text
}

fn client_class(error: &Client) -> &'static str {
    match error {
        Client::Remote(error) => remote_class(error),
        Client::Rows { error, .. } => client_class(error),
        Client::NoServer | Client::NoAuthority | Client::NoCredentials => "AuthenticationFailed",
        Client::JobFailed { .. } | Client::JobCancelled | Client::Resting => "JobFailed",
        Client::NothingLearned | Client::Outliers { .. } => "RangeExceeded",
        Client::Hostile { .. } | Client::KnownHostile { .. } => "ServerMisbehaved",
        Client::SetRefused { .. } | Client::NoSecureSet { .. } | Client::TooManyEpochs { .. } => "ServerRefused",
        Client::InUse { .. } => "ProjectInUse",
        Client::Io { .. } => "StorageError",
        Client::OtherSecret { .. }
        | Client::OtherBackup { .. }
        | Client::SecretLost { .. }
        | Client::NoSecret { .. }
        | Client::OtherKeyModel { .. }
        | Client::Stranded { .. }
        | Client::OldKeys { .. }
        | Client::KeySetLost { .. }
        | Client::Unlocked => "KeyMismatch",
        Client::Keys(error) => keys_class(error),
        Client::Table(_)
        | Client::UnknownClass { .. }
        | Client::TooFewRows
        | Client::ValidationShare { .. }
        | Client::FeatureCount { .. }
        | Client::ValidationColumns { .. }
        | Client::NotFinite { .. }
        | Client::Name { .. }
        | Client::Scheme(_)
        | Client::Weights(_)
        | Client::Learn(_) => "InvalidInput",
        Client::Cancelled | Client::Interrupted => "HetalError",
        _ => "ProjectError",
    }
}

fn keys_class(error: &hetal_keys::Error) -> &'static str {
    match error {
        hetal_keys::Error::Locked { .. } | hetal_keys::Error::Passphrase { .. } => "KeyMismatch",
        _ => "ProjectError",
    }
}

fn remote_class(error: &Rpc) -> &'static str {
    match error {
        Rpc::Unreachable { .. } | Rpc::Late { .. } | Rpc::Silent { .. } | Rpc::Cut { .. } => "ServerUnreachable",
        Rpc::Credentials { .. } | Rpc::Pem { .. } | Rpc::Token => "AuthenticationFailed",
        Rpc::Address { .. } => "InvalidInput",
        Rpc::Refused { .. } | Rpc::NotFound { .. } | Rpc::Limit { .. } | Rpc::Server { .. } => "ServerRefused",
        Rpc::Protocol { .. } | Rpc::Damaged { .. } | Rpc::Size { .. } => "ServerMisbehaved",
        Rpc::File { .. } | Rpc::NotAsWritten { .. } | Rpc::System { .. } => "StorageError",
        _ => "HetalError",
    }
}
