//! Blobs on their way: uploads that go on where they stopped, downloads that are checked.

use super::retry::{Backoff, with_timeout};
use super::{BlobKind, BlobName, Error, JobId, Output, Remote, Result};
use hetal_wire::{PART_BYTES, v1};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// How often progress is told.
const TICK: Duration = Duration::from_millis(20);

/// The name and length of a blob's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobDigest {
    /// The blob's name.
    pub name: BlobName,
    /// Its bytes.
    pub size: u64,
}

/// What an upload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// The blob's name.
    pub name: BlobName,
    /// Its bytes.
    pub size: u64,
    /// Bytes sent by this call, before framing: none where the server had them.
    pub sent: u64,
}

/// An upload in progress.
struct Sending<'a> {
    kind: BlobKind,
    path: &'a Path,
    uploaded: Uploaded,
    /// Whether the file's bytes are known to be those it is named after.
    checked: bool,
    /// The most that the server has said to hold.
    most_held: u64,
}

impl Remote {
    /// Uploads a file, as far as the server does not hold it yet. `progress` is told the bytes the server has and all bytes.
    pub fn upload(&self, kind: BlobKind, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Uploaded> {
        let BlobDigest { name, size } = digest_file(path)?;
        let uploaded = Uploaded { name, size, sent: 0 };
        self.send(Sending { kind, path, uploaded, checked: true, most_held: 0 }, progress)
    }

    /// [`Remote::upload`] of a file whose bytes must still be those it was named after: others do not leave. Where the server has them
    /// all the file is not looked at.
    pub fn upload_exactly(
        &self,
        kind: BlobKind,
        path: &Path,
        BlobDigest { name, size }: BlobDigest,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Uploaded> {
        let uploaded = Uploaded { name, size, sent: 0 };
        self.send(Sending { kind, path, uploaded, checked: false, most_held: 0 }, progress)
    }

    fn send(&self, mut sending: Sending<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Uploaded> {
        let mut backoff = Backoff::new(self.retry_timeout);
        loop {
            match self.try_upload(&mut sending, &mut backoff, progress) {
                Ok(Ok(())) => return Ok(sending.uploaded),
                // The server threw damaged bytes away: they are sent again.
                Ok(Err(status)) if status.code() == Code::DataLoss => {
                    self.wait(&mut backoff, Status::aborted(status.message()))?;
                }
                Ok(Err(status)) => self.wait(&mut backoff, status)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt: an inner error may pass when tried again.
    fn try_upload(
        &self,
        sending: &mut Sending<'_>,
        backoff: &mut Backoff,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<std::result::Result<(), Status>> {
        let Uploaded { name, size, .. } = sending.uploaded;
        let begin = v1::BeginUploadRequest { name: name.to_vec().into(), kind: sending.kind.to_message().into(), size };
        let state = match self.attempt(self.rpc.clone().begin_upload(begin)) {
            Ok(state) => state.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        if state.held > size {
            return Err(Error::protocol(format!("it holds {} bytes of a blob of {size}", state.held)));
        }
        if state.held > sending.most_held {
            sending.most_held = state.held;
            backoff.renew();
        }
        progress(state.held, size);
        if state.complete {
            return Ok(Ok(()));
        }
        if !sending.checked {
            self.check(sending)?;
        }
        let parts = Parts::open(sending.path, name, state.held)?;
        let read = Arc::clone(&parts.read);
        let mut rpc = self.rpc.clone();
        let outcome = self.runtime.block_on(async {
            let call = rpc.upload(tokio_stream::iter(parts));
            tokio::pin!(call);
            let (mut last, mut moved) = (state.held, Instant::now());
            loop {
                if let Ok(outcome) = tokio::time::timeout(TICK, &mut call).await {
                    return outcome;
                }
                let now = read.load(Ordering::Relaxed).min(size);
                if now != last {
                    (last, moved) = (now, Instant::now());
                }
                if moved.elapsed() > self.retry_timeout {
                    return Err(Status::deadline_exceeded("the server takes no more bytes"));
                }
                progress(now, size);
            }
        });
        sending.uploaded.sent += read.load(Ordering::Relaxed).saturating_sub(state.held);
        match outcome {
            Ok(state) if state.get_ref().complete => {
                progress(size, size);
                Ok(Ok(()))
            }
            Ok(_) => Ok(Err(Status::unavailable("the upload ended early"))),
            Err(status) => Ok(Err(status)),
        }
    }

    /// Compares a file with what it is to be sent as.
    fn check(&self, sending: &mut Sending<'_>) -> Result<()> {
        let Uploaded { name, size, .. } = sending.uploaded;
        let is_gone = matches!(sending.path.try_exists(), Ok(false));
        sending.checked = !is_gone && digest_file(sending.path)? == BlobDigest { name, size };
        if sending.checked {
            return Ok(());
        }
        // It would never be whole, and counts among what its owner may have there.
        let _ = self.delete_upload(name);
        let what = if is_gone {
            "it is gone, and the server does not have it"
        } else {
            "its bytes are not those that were written"
        };
        Err(Error::File { path: sending.path.to_owned(), reason: format!("{what}: start again with --replace") })
    }

    /// Downloads a blob that a job made into a file; a part that is there already is not downloaded again. `expected` is the size that
    /// such an object has: a server that announces another is not listened to.
    pub fn download(
        &self,
        job: JobId,
        output: &Output,
        expected: u64,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        if output.size != expected {
            return Err(Error::Size { announced: output.size, expected });
        }
        let wanted = BlobDigest { name: output.blob, size: expected };
        if path.exists() && digest_file(path)? == wanted {
            return Ok(());
        }
        let part = partial(path);
        let mut backoff = Backoff::new(self.retry_timeout);
        let mut retried = false;
        loop {
            let mut renewing = |held, all| {
                backoff.renew();
                progress(held, all);
            };
            if let Err(status) = self.try_download(job, output, &part, &mut renewing)? {
                self.wait(&mut backoff, status)?;
                continue;
            }
            if digest_file(&part)? == wanted {
                return std::fs::rename(&part, path).map_err(|e| Error::file(path, &e));
            }
            // An old part may have been damaged here: once more from the start.
            std::fs::remove_file(&part).map_err(|e| Error::file(&part, &e))?;
            if std::mem::replace(&mut retried, true) {
                return Err(Error::Damaged { blob: output.blob });
            }
        }
    }

    fn try_download(
        &self,
        job: JobId,
        output: &Output,
        part: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<std::result::Result<(), Status>> {
        let mut options = File::options();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(part).map_err(|e| Error::file(part, &e))?;
        let mut held = file.metadata().map_err(|e| Error::file(part, &e))?.len();
        let request = v1::DownloadRequest { job: job.to_vec().into(), blob: output.blob.to_vec().into(), offset: held };
        if held >= output.size {
            return Ok(Ok(()));
        }
        self.runtime.block_on(async {
            let mut rpc = self.rpc.clone();
            let mut stream = match with_timeout(self.retry_timeout, rpc.download(request)).await {
                Ok(Ok(stream)) => stream.into_inner(),
                Ok(Err(status)) => return Ok(Err(status)),
                Err(timeout) => return Ok(Err(timeout.into())),
            };
            loop {
                let next = with_timeout(self.retry_timeout, stream.message()).await;
                match next.unwrap_or_else(|timeout| Err(timeout.into())) {
                    // An empty part is no progress, and there may be any number of them.
                    Ok(Some(message)) if message.data.is_empty() => {
                        return Err(Error::protocol("an empty part of a download"));
                    }
                    Ok(Some(message)) => {
                        held += message.data.len() as u64;
                        if held > output.size {
                            return Err(Error::Size { announced: held, expected: output.size });
                        }
                        file.write_all(&message.data).map_err(|e| Error::file(part, &e))?;
                        progress(held, output.size);
                    }
                    Ok(None) if held == output.size => {
                        return file.sync_all().map(|()| Ok(())).map_err(|e| Error::file(part, &e));
                    }
                    Ok(None) => return Ok(Err(Status::unavailable("the download ended early"))),
                    Err(status) => return Ok(Err(status)),
                }
            }
        })
    }
}

/// The name and length of a file's bytes.
pub(crate) fn digest_file(path: &Path) -> Result<BlobDigest> {
    let fail = |e: std::io::Error| Error::file(path, &e);
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).map_err(fail)?).map_err(fail)?;
    Ok(BlobDigest { name: BlobName(*hasher.finalize().as_bytes()), size: hasher.count() })
}

/// Where a download is kept until it is whole.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// The rest of a file, part by part.
struct Parts {
    file: File,
    name: BlobName,
    offset: u64,
    first: bool,
    /// Bytes of the file up to the end of the last part.
    read: Arc<AtomicU64>,
}

impl Parts {
    fn open(path: &Path, name: BlobName, offset: u64) -> Result<Self> {
        let fail = |e: std::io::Error| Error::file(path, &e);
        let mut file = File::open(path).map_err(fail)?;
        file.seek(SeekFrom::Start(offset)).map_err(fail)?;
        Ok(Self { file, name, offset, first: true, read: Arc::new(AtomicU64::new(offset)) })
    }
}

impl Iterator for Parts {
    type Item = v1::UploadPart;

    /// A file that cannot be read any more ends the stream early; the server then says that bytes are missing.
    fn next(&mut self) -> Option<v1::UploadPart> {
        let mut data = Vec::with_capacity(PART_BYTES);
        let count = (&self.file).take(PART_BYTES as u64).read_to_end(&mut data).unwrap_or(0);
        let first = std::mem::replace(&mut self.first, false);
        if count == 0 && !first {
            return None;
        }
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        let name = if first { self.name.to_vec() } else { Vec::new() };
        let offset = if first { self.offset } else { 0 };
        Some(v1::UploadPart { name: name.into(), offset, data: data.into() })
    }
}
