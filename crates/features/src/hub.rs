//! Models by name from the Hugging Face hub: a revision and the hash of the weights are part of the name.

use crate::weights::hexadecimal;
use crate::{Error, Result, config, disk};
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
#[derive(Debug, Clone, PartialEq)]
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

    /// Whether the weights at `path`, whose hash is `found`, are the pinned ones.
    pub(crate) fn check(&self, path: &Path, found: &str) -> Result<()> {
        if found == self.sha256 {
            return Ok(());
        }
        let reason = format!("its SHA-256 is {found}, pinned is {}; remove it and check the pin", self.sha256);
        Err(Error::file(path, reason))
    }
}

/// A hub and the folder its models are kept in.
pub struct Hub {
    /// Its address, without a slash at the end.
    pub address: String,
    /// Models that have been downloaded.
    pub cache: PathBuf,
    /// How long it may be silent: `PATIENCE`, usually.
    pub patience: Duration,
}

impl Hub {
    /// The folder of the pinned model, downloaded if it is not there; `progress` hears file, bytes so far, bytes in all. Weights that
    /// come are held to their pin here, weights that are there by `Extractor::pinned`, which reads them anyway.
    pub fn fetch(&self, pin: &Pin, mut progress: impl FnMut(&str, u64, Option<u64>)) -> Result<PathBuf> {
        let folder = self.cache.join(pin.name.replace('/', "--")).join(&pin.revision);
        // The weights come last: where they are, everything is.
        if !folder.join(WEIGHTS).is_file() {
            for (file, needed) in FILES {
                let there = self.download(pin, file, &folder, &mut progress)?;
                if needed && !there {
                    let reason = format!("the model has no {file}, so it cannot be read by this program");
                    return Err(Error::Download { address: self.link(pin, file), reason });
                }
            }
        }
        Ok(folder)
    }

    fn link(&self, pin: &Pin, file: &str) -> String {
        format!("{}/{}/resolve/{}/{file}", self.address, pin.name, pin.revision)
    }

    /// Fetches a file under a name of its own first, so that what has its final name is whole; false if there is none.
    fn download(
        &self,
        pin: &Pin,
        file: &str,
        folder: &Path,
        progress: &mut impl FnMut(&str, u64, Option<u64>),
    ) -> Result<bool> {
        let address = self.link(pin, file);
        let failed = |reason: String| Error::Download {
            address: address.clone(),
            reason: format!("{reason}; without a network, download the model elsewhere and give its folder"),
        };
        let response = match self.agent().get(&address).call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(404)) => return Ok(false),
            Err(error) => return Err(failed(error.to_string())),
        };
        let most = if file == WEIGHTS { MAX_WEIGHTS } else { config::MAX_BYTES };
        let total = response.body().content_length();
        let path = folder.join(file);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        let Some(mut out) = claimed(&path)? else { return Ok(true) };
        let part = disk::unfinished(&path);
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
            out.write_all(&piece).map_err(Error::io(&part))?;
            hash.update(&piece);
            progress(file, done, total);
        }
        if total.is_some_and(|total| total != done) {
            return Err(failed(format!("ended after {done} bytes")));
        }
        if file == WEIGHTS {
            pin.check(&part, &hexadecimal(&hash.finalize()))?;
        }
        disk::publish(&out, &path)?;
        Ok(true)
    }

    /// What waits for names, connections and answers, but not for ever.
    fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(self.patience))
            .timeout_connect(Some(self.patience))
            .timeout_recv_response(Some(self.patience));
        config.build().into()
    }
}

/// The unfinished file of a download, for this process alone: one that another process writes is waited for, which ends when that
/// process does. `None` if the file is there by then.
fn claimed(path: &Path) -> Result<Option<File>> {
    let part = disk::unfinished(path);
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(&part).map_err(Error::io(&part))?;
        file.lock().map_err(Error::io(&part))?;
        if path.is_file() {
            return Ok(None);
        }
        // What was locked may have been published, and taken away again, since it was opened.
        if is_at(&file, &part) {
            file.set_len(0).map_err(Error::io(&part))?;
            return Ok(Some(file));
        }
    }
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

/// What a body holds, piece by piece and an empty one last, from a thread of its own: a read that never ends can be left to itself.
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
