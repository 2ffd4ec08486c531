//! Models by name from the Hugging Face hub: a revision and the hash of the weights are part of the
//! name.

use crate::weights::hexadecimal;
use crate::{Error, Result, config, disk};
use hetal_extract_api::catalogue;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Where models are asked for unless the user says otherwise.
pub const ADDRESS: &str = "https://huggingface.co";

/// How long a hub may be silent.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Weights above this many bytes are refused; what lies beside them is a configuration.
const MAX_WEIGHTS: u64 = 16 << 30;

/// The file of a model's weights.
pub const WEIGHTS: &str = "model.safetensors";

/// What a model may consist of, and whether it must.
const FILES: [(&str, bool); 9] = [
    ("config.json", true),
    ("tokenizer.json", false),
    ("modules.json", false),
    ("1_Pooling/config.json", false),
    ("sentence_bert_config.json", false),
    ("config_sentence_transformers.json", false),
    ("tokenizer_config.json", false),
    ("preprocessor_config.json", false),
    (WEIGHTS, true),
];

/// A model, pinned: these bytes and no others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// `owner/name`.
    pub name: String,
    /// The commit: 40 hexadecimal digits.
    pub revision: String,
    /// SHA-256 of `model.safetensors`: 64 hexadecimal digits.
    pub sha256: String,
}

impl Pin {
    /// Checks the form of all three parts.
    pub fn new(name: &str, revision: &str, sha256: &str) -> Result<Self> {
        let bad = |reason: &str| Error::Download { address: name.to_owned(), reason: reason.to_owned() };
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        let hexadecimal = |text: &str, length| text.len() == length && text.chars().all(|c| c.is_ascii_hexdigit());
        match name.split('/').collect::<Vec<_>>()[..] {
            [owner, model] if plain(owner) && plain(model) => {}
            _ => return Err(bad("is no name of a model: it must be owner/name")),
        }
        if !hexadecimal(revision, 40) {
            return Err(bad("needs --revision: the 40 digits of a commit, from the model's page under Files"));
        }
        if !hexadecimal(sha256, 64) {
            return Err(bad("needs --sha256: the 64 digits shown on the hub's page of model.safetensors"));
        }
        Ok(Self { name: name.to_owned(), revision: revision.to_lowercase(), sha256: sha256.to_lowercase() })
    }

    /// What is wrong with weights whose hash is `found`, unless they are the pinned ones.
    pub(crate) fn difference(&self, found: &str) -> Option<String> {
        (found != self.sha256).then(|| format!("its SHA-256 is {found}, pinned is {}", self.sha256))
    }
}

/// A hub and the folder its models are kept in.
pub struct Hub {
    /// Its address, without a slash at the end.
    pub address: String,
    /// Sent to the hub, and to no other host it redirects to, over TLS or to this machine.
    pub token: Option<String>,
    /// Models that have been downloaded.
    pub cache: PathBuf,
    /// How long it may be silent: `PATIENCE`, usually.
    pub patience: Duration,
}

/// What a download tells of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step<'a> {
    /// Another program fetches this file, and is waited for.
    Waiting(&'a str),
    /// So many bytes of a file have come.
    Coming {
        /// Which file.
        file: &'a str,
        /// Bytes so far.
        done: u64,
        /// Bytes in all, where the hub says so.
        total: Option<u64>,
    },
    /// A file that may belong to the model could not be asked for, or not be kept: the model is
    /// used without it.
    Without {
        /// Which file.
        file: &'a str,
        /// Why.
        reason: &'a str,
    },
}

impl Hub {
    /// The folder of the pinned model. Files that are not there are downloaded; those that the hub
    /// does not have either are remembered, so that a whole copy needs no network, and one that an
    /// earlier version of this program left is made whole; where that cannot be, it is used as it
    /// was then. Weights that come are held to their pin here, weights that are there by
    /// `Extractor::pinned`, which reads them anyway.
    pub fn fetch(&self, pin: &Pin, mut progress: impl FnMut(Step)) -> Result<PathBuf> {
        let folder = self.folder(pin);
        // Weights come last: with them is everything that the version which fetched them knew of.
        let was_whole = folder.join(WEIGHTS).is_file();
        let mut in_vain = false;
        for (file, needed) in files(pin) {
            // A hub that does not answer is not waited for again.
            if in_vain && !needed {
                continue;
            }
            match self.fetch_file(pin, &folder, (file, needed), &mut progress) {
                Err(error) if was_whole && !needed => {
                    progress(Step::Without { file, reason: &error.to_string() });
                    in_vain = true;
                }
                fetched => fetched?,
            }
        }
        Ok(folder)
    }

    /// Where a model is kept.
    fn folder(&self, pin: &Pin) -> PathBuf {
        self.cache.join(pin.name.replace('/', "--")).join(&pin.revision)
    }

    /// One of the files, unless it is known already.
    fn fetch_file(
        &self,
        pin: &Pin,
        folder: &Path,
        (file, needed): (&str, bool),
        progress: &mut impl FnMut(Step),
    ) -> Result<()> {
        let path = folder.join(file);
        if is_known(&path) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        // Claimed before it is asked for: while one waits for another, the hub would take back what
        // it offered.
        let Some(out) = claimed(&path, || progress(Step::Waiting(file)))? else { return Ok(()) };
        let part = disk::unfinished(&path);
        match self.download(pin, file, (&out, &part), progress) {
            Ok(true) => disk::publish(&out, &path),
            Ok(false) if !needed => disk::rename(&part, &absent(&path)),
            failed => {
                disk::remove(&part)?;
                failed?;
                let reason = format!("the model has no {file}, so it cannot be read by this program");
                Err(Error::Download { address: self.link(pin, file), reason })
            }
        }
    }

    fn link(&self, pin: &Pin, file: &str) -> String {
        format!("{}/{}/resolve/{}/{file}", self.address, pin.name, pin.revision)
    }

    /// Fetches a file into an open one, whose place is for errors; false if there is none.
    fn download(
        &self,
        pin: &Pin,
        file: &str,
        (mut out, place): (&File, &Path),
        progress: &mut impl FnMut(Step),
    ) -> Result<bool> {
        let address = self.link(pin, file);
        let failed = |reason: String| Error::Download {
            address: address.clone(),
            reason: format!("{reason}; {}", self.by_hand(pin)),
        };
        let mut request = self.agent().get(&address);
        if let Some(token) = self.token.as_ref().filter(|_| is_private(&self.address)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Ok(false),
            Err(ureq::Error::StatusCode(status @ (401 | 403))) => {
                let reason = format!("the hub refuses it ({status}): a gated or private model needs HF_TOKEN");
                return Err(Error::Download { address, reason });
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let most = if file == WEIGHTS { MAX_WEIGHTS } else { config::MAX_BYTES };
        let total = response.body().content_length();
        let pieces = pieces(response.into_body().into_reader());
        let (mut hash, mut done) = (Sha256::new(), 0);
        loop {
            let silent = |_| failed(format!("nothing came for {} s", self.patience.as_secs_f32()));
            let piece = pieces.recv_timeout(self.patience).map_err(silent)?.map_err(|e| failed(e.to_string()))?;
            if piece.is_empty() {
                break;
            }
            done += piece.len() as u64;
            if done.max(total.unwrap_or(0)) > most {
                return Err(failed(format!("has more than {most} bytes")));
            }
            out.write_all(&piece).map_err(Error::io(place))?;
            hash.update(&piece);
            progress(Step::Coming { file, done, total });
        }
        if total.is_some_and(|total| total != done) {
            return Err(failed(format!("ended after {done} bytes")));
        }
        match pin.difference(&hexadecimal(&hash.finalize())) {
            Some(difference) if file == WEIGHTS => {
                Err(Error::Download { address, reason: format!("{difference}; check the pin") })
            }
            _ => Ok(true),
        }
    }

    /// What waits for names, connections and answers, but not for ever.
    fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(self.patience))
            .timeout_connect(Some(self.patience))
            .timeout_recv_response(Some(self.patience))
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost);
        config.build().into()
    }

    /// What to do on a machine without a network.
    fn by_hand(&self, pin: &Pin) -> String {
        let Pin { name, revision, .. } = pin;
        let list: Vec<&str> = files(pin).into_iter().map(|(file, _)| file).collect();
        let which = if catalogue::files(name, revision).is_some() { "" } else { "those of " };
        format!(
            "without a network: download {which}{} from {}/{name}/tree/{revision} on another machine and put them into {} \
             (files of a folder into that folder), or anywhere and give its folder with --model",
            list.join(", "),
            self.address,
            self.folder(pin).display()
        )
    }
}

/// The files a model may consist of, and whether it must. Of a model of the catalogue they are
/// known, so that no others are asked for.
fn files(pin: &Pin) -> Vec<(&'static str, bool)> {
    match catalogue::files(&pin.name, &pin.revision) {
        Some(known) => known.iter().map(|file| (*file, true)).collect(),
        None => FILES.to_vec(),
    }
}

/// Whether what is sent to an address stays between this machine and the one it names.
fn is_private(address: &str) -> bool {
    let here = |host: &str| {
        let rest = address.strip_prefix("http://").and_then(|rest| rest.strip_prefix(host));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    };
    address.starts_with("https://") || ["127.0.0.1", "localhost", "[::1]"].into_iter().any(here)
}

/// The folder of a pinned model in the cache of Hugging Face's own programs (`hub`), if all of it
/// is there. Programs that load a model download only some of its files, and a missing file can
/// change features: the copy is used if it holds every file, or if each missing one is known not to
/// exist.
pub fn snapshot(hub: &Path, pin: &Pin) -> Option<PathBuf> {
    let model = hub.join(format!("models--{}", pin.name.replace('/', "--")));
    let folder = model.join("snapshots").join(&pin.revision);
    let absent = model.join(".no_exist").join(&pin.revision);
    // Only a download of the whole repository brings this file.
    let is_whole = folder.join(".gitattributes").exists();
    let known = |(file, needed): (&str, bool)| {
        folder.join(file).is_file() || (!needed && (is_whole || absent.join(file).exists()))
    };
    files(pin).into_iter().all(known).then_some(folder)
}

/// The mark of a file that a model does not have, in the file's place.
fn absent(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".absent");
    path.with_file_name(name)
}

/// Whether it is known what a file is, or that there is none.
fn is_known(path: &Path) -> bool {
    path.is_file() || absent(path).is_file()
}

/// The unfinished file of a download, for this process alone: one that another process writes is
/// waited for, which ends when that process does; `waiting` hears it. `None` if it is known by then
/// what the file is, or that there is none.
fn claimed(path: &Path, mut waiting: impl FnMut()) -> Result<Option<File>> {
    let part = disk::unfinished(path);
    while !is_known(path) {
        let file = File::options().create(true).truncate(false).write(true).open(&part).map_err(Error::io(&part))?;
        if file.try_lock().is_err() {
            waiting();
            file.lock().map_err(Error::io(&part))?;
        }
        // What was locked may have been published, and taken away again, since it was opened.
        match is_at(&file, &part) {
            true if is_known(path) => disk::remove(&part)?,
            true => {
                file.set_len(0).map_err(Error::io(&part))?;
                return Ok(Some(file));
            }
            false => {}
        }
    }
    Ok(None)
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(place) == std::fs::metadata(path).ok().map(place)
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

/// What a body holds, piece by piece and an empty one last, from a thread of its own: a read that
/// never ends can be left to itself.
fn pieces(mut body: impl Read + Send + 'static) -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(4);
    std::thread::spawn(move || {
        loop {
            let mut buffer = vec![0; 1 << 16];
            let piece = body.read(&mut buffer).map(|read| {
                buffer.truncate(read);
                buffer
            });
            let last = piece.as_ref().map_or(true, Vec::is_empty);
            if sender.send(piece).is_err() || last {
                break;
            }
        }
    });
    receiver
}
