//! Downloads models from the Hugging Face hub. A model is pinned by its name, its revision and the
//! hash of its weights.

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

/// The address of the hub, unless the user gives another.
pub const ADDRESS: &str = "https://huggingface.co";

/// The time that a hub may be silent.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Weights above this many bytes are refused. Other files are configurations, with a limit of their
/// own.
const MAX_WEIGHTS: u64 = 16 << 30;

/// The file of a model's weights.
pub const WEIGHTS: &str = "model.safetensors";

/// The files that a model may have, and whether it must have them.
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

/// A pinned model: exactly these weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PinnedModel {
    /// `owner/name`.
    pub name: String,
    /// The commit: 40 hexadecimal digits.
    pub revision: String,
    /// SHA-256 of `model.safetensors`: 64 hexadecimal digits.
    pub sha256: String,
}

impl PinnedModel {
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
            _ => return Err(bad("is no name of a model: use owner/name")),
        }
        if !hexadecimal(revision, 40) {
            return Err(bad("needs --revision: the 40 digits of a commit, from the model's page under Files"));
        }
        if !hexadecimal(sha256, 64) {
            return Err(bad("needs --sha256: the 64 digits shown on the hub's page of model.safetensors"));
        }
        Ok(Self { name: name.to_owned(), revision: revision.to_lowercase(), sha256: sha256.to_lowercase() })
    }

    /// The difference between the pinned weights and weights with the hash `found`, if there is
    /// one.
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
    /// The time that it may be silent: usually [`SILENCE_TIMEOUT`].
    pub silence_timeout: Duration,
}

/// A step of a download.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DownloadStep<'a> {
    /// Another program downloads this file; this one waits for it.
    Waiting(&'a str),
    /// A part of a file has arrived.
    Coming {
        /// Which file.
        file: &'a str,
        /// Bytes so far.
        done: u64,
        /// Bytes in all, where the hub says so.
        total: Option<u64>,
    },
    /// A file that may belong to the model could not be requested or stored: the model is used
    /// without it.
    Without {
        /// Which file.
        file: &'a str,
        /// Why.
        reason: &'a str,
    },
}

impl Hub {
    /// The folder of the pinned model, with all its files. Missing files are downloaded. A file
    /// that the hub does not have is recorded as absent, so that a complete copy needs no network.
    ///
    /// A copy that an earlier version left incomplete is completed; if that fails, it is used as it
    /// is. Downloaded weights are compared with the pin here, weights on disk in
    /// `Extractor::pinned`, which reads them anyway.
    pub fn fetch(&self, pin: &PinnedModel, mut progress: impl FnMut(DownloadStep)) -> Result<PathBuf> {
        let folder = self.folder(pin);
        // The weights are downloaded last: if they exist, the other files were downloaded before.
        let was_whole = folder.join(WEIGHTS).is_file();
        let mut in_vain = false;
        for (file, needed) in files(pin) {
            // If the hub did not answer once, it is not asked again.
            if in_vain && !needed {
                continue;
            }
            match self.fetch_file(pin, &folder, (file, needed), &mut progress) {
                Err(error) if was_whole && !needed => {
                    progress(DownloadStep::Without { file, reason: &error.to_string() });
                    in_vain = true;
                }
                fetched => fetched?,
            }
        }
        Ok(folder)
    }

    /// The folder of a model.
    fn folder(&self, pin: &PinnedModel) -> PathBuf {
        self.cache.join(pin.name.replace('/', "--")).join(&pin.revision)
    }

    /// Downloads a file, unless it exists or is recorded as absent.
    fn fetch_file(
        &self,
        pin: &PinnedModel,
        folder: &Path,
        (file, needed): (&str, bool),
        progress: &mut impl FnMut(DownloadStep),
    ) -> Result<()> {
        let path = folder.join(file);
        if is_known(&path) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        // Locked before the request: the hub would time out while this program waits for the lock.
        let Some(out) = lock_download(&path, || progress(DownloadStep::Waiting(file)))? else { return Ok(()) };
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

    fn link(&self, pin: &PinnedModel, file: &str) -> String {
        format!("{}/{}/resolve/{}/{file}", self.address, pin.name, pin.revision)
    }

    /// Downloads a file into an open one, whose path is for errors; false if the hub does not have
    /// it.
    fn download(
        &self,
        pin: &PinnedModel,
        file: &str,
        (mut out, out_path): (&File, &Path),
        progress: &mut impl FnMut(DownloadStep),
    ) -> Result<bool> {
        let address = self.link(pin, file);
        let failed = |reason: String| Error::Download {
            address: address.clone(),
            reason: format!("{reason}; {}", self.offline_instructions(pin)),
        };
        let mut request = self.agent().get(&address);
        if let Some(token) = self.token.as_ref().filter(|_| is_private(&self.address)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Ok(false),
            Err(ureq::Error::StatusCode(status @ (401 | 403))) => {
                let reason =
                    format!("the hub refused the request ({status}); for a gated or private model set HF_TOKEN");
                return Err(Error::Download { address, reason });
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let most = if file == WEIGHTS { MAX_WEIGHTS } else { config::MAX_BYTES };
        let total = response.body().content_length();
        let pieces = pieces(response.into_body().into_reader());
        let (mut hash, mut done) = (Sha256::new(), 0);
        loop {
            let silent = |_| failed(format!("nothing came for {} s", self.silence_timeout.as_secs_f32()));
            let piece =
                pieces.recv_timeout(self.silence_timeout).map_err(silent)?.map_err(|e| failed(e.to_string()))?;
            if piece.is_empty() {
                break;
            }
            done += piece.len() as u64;
            if done.max(total.unwrap_or(0)) > most {
                return Err(failed(format!("has more than {most} bytes")));
            }
            out.write_all(&piece).map_err(Error::io(out_path))?;
            hash.update(&piece);
            progress(DownloadStep::Coming { file, done, total });
        }
        if total.is_some_and(|total| total != done) {
            return Err(failed(format!("ended after {done} bytes")));
        }
        match pin.difference(&hexadecimal(&hash.finalize())) {
            Some(difference) if file == WEIGHTS => {
                Err(Error::Download { address, reason: format!("{difference}; check --revision and --sha256") })
            }
            _ => Ok(true),
        }
    }

    /// The HTTP client, with timeouts for names, connections and answers.
    fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(self.silence_timeout))
            .timeout_connect(Some(self.silence_timeout))
            .timeout_recv_response(Some(self.silence_timeout))
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost);
        config.build().into()
    }

    /// What to do on a machine without an internet connection.
    fn offline_instructions(&self, pin: &PinnedModel) -> String {
        let PinnedModel { name, revision, .. } = pin;
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

/// The files that a model may have, and whether it must have them. The catalogue lists the files of
/// its models, so that no others are requested.
fn files(pin: &PinnedModel) -> Vec<(&'static str, bool)> {
    match catalogue::files(&pin.name, &pin.revision) {
        Some(known) => known.iter().map(|file| (*file, true)).collect(),
        None => FILES.to_vec(),
    }
}

/// Whether nobody between this machine and the address can read what is sent.
fn is_private(address: &str) -> bool {
    let here = |host: &str| {
        let rest = address.strip_prefix("http://").and_then(|rest| rest.strip_prefix(host));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    };
    address.starts_with("https://") || ["127.0.0.1", "localhost", "[::1]"].into_iter().any(here)
}

/// The folder of a pinned model in the cache of Hugging Face's own programs (`hub`), if it is
/// complete. Those programs often download only some files of a model, and a missing file can
/// change features. A copy is complete if each file exists or is recorded as absent.
pub fn snapshot(hub: &Path, pin: &PinnedModel) -> Option<PathBuf> {
    let model = hub.join(format!("models--{}", pin.name.replace('/', "--")));
    let folder = model.join("snapshots").join(&pin.revision);
    let absent = model.join(".no_exist").join(&pin.revision);
    // Only a download of the whole repository includes this file.
    let is_whole = folder.join(".gitattributes").exists();
    let known = |(file, needed): (&str, bool)| {
        folder.join(file).is_file() || (!needed && (is_whole || absent.join(file).exists()))
    };
    files(pin).into_iter().all(known).then_some(folder)
}

/// The file that records that a model does not have a file.
fn absent(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".absent");
    path.with_file_name(name)
}

/// Whether a file exists or is recorded as absent.
fn is_known(path: &Path) -> bool {
    path.is_file() || absent(path).is_file()
}

/// Opens and locks the unfinished file of a download. If another process holds the lock, `waiting`
/// is called, and this one waits until the other has finished or ended. `None` if the file exists
/// by then, or is recorded as absent.
fn lock_download(path: &Path, mut waiting: impl FnMut()) -> Result<Option<File>> {
    let part = disk::unfinished(path);
    while !is_known(path) {
        let file = File::options().create(true).truncate(false).write(true).open(&part).map_err(Error::io(&part))?;
        if file.try_lock().is_err() {
            waiting();
            file.lock().map_err(Error::io(&part))?;
        }
        // The file may have been renamed or removed between opening and locking.
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

/// Reads a body in a thread of its own, piece by piece, an empty piece last. A read that never ends
/// blocks that thread only.
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
