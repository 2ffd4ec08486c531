//! Transfer of blobs: uploads that continue where they stopped, and downloads that are verified.

use super::retry::{Backoff, with_timeout};
use super::{BlobKind, BlobName, Error, JobId, Output, Remote, Result};
use hetal_wire::{MESSAGE_PART_BYTES, v1};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(20);

/// The hash and length of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobDigest {
    /// Its name: the hash of its bytes.
    pub name: BlobName,
    /// Its length in bytes.
    pub size: u64,
}

/// A completed upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// The name of the blob.
    pub name: BlobName,
    /// Its length in bytes.
    pub size: u64,
    /// Payload bytes sent by this call: 0 if the server had the blob.
    pub sent: u64,
}

/// An upload in progress.
struct PendingUpload<'a> {
    kind: BlobKind,
    path: &'a Path,
    uploaded: Uploaded,
    /// Whether the bytes of the file match the digest.
    checked: bool,
    /// The most bytes that the server has acknowledged.
    most_held: u64,
}

impl Remote {
    /// Uploads the bytes of a file that the server does not have yet. `progress` receives the bytes
    /// that the server has and the length of the file, unless the server had all of it.
    pub fn upload(&self, kind: BlobKind, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Uploaded> {
        let BlobDigest { name, size } = digest_file(path)?;
        let uploaded = Uploaded { name, size, sent: 0 };
        self.send(PendingUpload { kind, path, uploaded, checked: true, most_held: 0 }, progress)
    }

    /// Uploads a file like [`Remote::upload`], but only if its bytes still match a digest. If the
    /// server has the whole blob, the file is not read.
    pub fn upload_exactly(
        &self,
        kind: BlobKind,
        path: &Path,
        BlobDigest { name, size }: BlobDigest,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Uploaded> {
        let uploaded = Uploaded { name, size, sent: 0 };
        self.send(PendingUpload { kind, path, uploaded, checked: false, most_held: 0 }, progress)
    }

    fn send(&self, mut upload: PendingUpload<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Uploaded> {
        let mut backoff = Backoff::new(self.retry_timeout);
        loop {
            match self.try_upload(&mut upload, &mut backoff, progress) {
                Ok(Ok(())) => return Ok(upload.uploaded),
                // The server discarded damaged bytes: send them again.
                Ok(Err(status)) if status.code() == Code::DataLoss => {
                    self.wait(&mut backoff, Status::aborted(status.message()))?;
                }
                Ok(Err(status)) => self.wait(&mut backoff, status)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes one attempt. After an inner error, another attempt may succeed.
    fn try_upload(
        &self,
        upload: &mut PendingUpload<'_>,
        backoff: &mut Backoff,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<std::result::Result<(), Status>> {
        let Uploaded { name, size, .. } = upload.uploaded;
        let begin = v1::BeginUploadRequest { name: name.to_vec().into(), kind: upload.kind.to_message().into(), size };
        let state = match self.attempt(self.rpc().begin_upload(begin)) {
            Ok(state) => state.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        if state.held > size {
            return Err(Error::protocol(format!("it claims to hold {} bytes of a blob of {size} bytes", state.held)));
        }
        if state.held > upload.most_held {
            upload.most_held = state.held;
            backoff.renew();
        }
        // Of a blob that the server had before, there is nothing to report.
        if !state.complete || upload.uploaded.sent > 0 {
            progress(state.held, size);
        }
        if state.complete {
            return Ok(Ok(()));
        }
        if !upload.checked {
            self.check(upload)?;
        }
        let parts = UploadParts::open(upload.path, name, state.held)?;
        let read = Arc::clone(&parts.read);
        let mut rpc = self.rpc();
        let outcome = self.runtime.block_on(async {
            let call = rpc.upload(tokio_stream::iter(parts));
            tokio::pin!(call);
            let (mut last, mut moved) = (state.held, Instant::now());
            loop {
                if let Ok(outcome) = tokio::time::timeout(TICK, &mut call).await {
                    return outcome;
                }
                if self.cancellation.is_requested() {
                    return Err(Status::cancelled("the caller asked for the end"));
                }
                let now = read.load(Ordering::Relaxed).min(size);
                if now != last {
                    (last, moved) = (now, Instant::now());
                }
                if moved.elapsed() > self.retry_timeout {
                    return Err(Status::deadline_exceeded("the server accepts no more bytes"));
                }
                progress(now, size);
            }
        });
        upload.uploaded.sent += read.load(Ordering::Relaxed).saturating_sub(state.held);
        match outcome {
            Ok(state) if state.get_ref().complete => {
                progress(size, size);
                Ok(Ok(()))
            }
            Ok(_) => Ok(Err(Status::unavailable("the upload ended early"))),
            Err(status) => Ok(Err(status)),
        }
    }

    /// Compares a file with the digest it is sent under.
    fn check(&self, upload: &mut PendingUpload<'_>) -> Result<()> {
        let Uploaded { name, size, .. } = upload.uploaded;
        let is_gone = matches!(upload.path.try_exists(), Ok(false));
        upload.checked = !is_gone && digest_file(upload.path)? == BlobDigest { name, size };
        if upload.checked {
            return Ok(());
        }
        // The upload cannot be completed, and it counts towards the tenant's limit.
        let _ = self.delete_upload(name);
        Err(Error::NotAsWritten { path: upload.path.to_owned(), is_gone })
    }

    /// Downloads an output of a job into a file. Bytes that were downloaded before are not
    /// downloaded again. A server that announces another size than `expected` is an error.
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
            // A part from an earlier run may be damaged: try once more from the start.
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
            let mut rpc = self.rpc();
            let mut stream = match self.unless_cancelled(with_timeout(self.retry_timeout, rpc.download(request))).await
            {
                Ok(Ok(Ok(stream))) => stream.into_inner(),
                Ok(Ok(Err(status))) | Err(status) => return Ok(Err(status)),
                Ok(Err(timeout)) => return Ok(Err(timeout.into())),
            };
            loop {
                let next = self.unless_cancelled(with_timeout(self.retry_timeout, stream.message())).await;
                match next.and_then(|next| next.unwrap_or_else(|timeout| Err(timeout.into()))) {
                    // An endless sequence of empty parts would never time out.
                    Ok(Some(message)) if message.data.is_empty() => {
                        return Err(Error::protocol("it sent an empty part of a download"));
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

/// Computes the hash and length of a file.
pub(crate) fn digest_file(path: &Path) -> Result<BlobDigest> {
    let fail = |e: std::io::Error| Error::file(path, &e);
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).map_err(fail)?).map_err(fail)?;
    Ok(BlobDigest { name: BlobName(*hasher.finalize().as_bytes()), size: hasher.count() })
}

/// The path of an incomplete download.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// The rest of a file in parts, as the messages of an upload.
struct UploadParts {
    file: File,
    name: BlobName,
    offset: u64,
    first: bool,
    /// Offset of the end of the last part.
    read: Arc<AtomicU64>,
}

impl UploadParts {
    fn open(path: &Path, name: BlobName, offset: u64) -> Result<Self> {
        let fail = |e: std::io::Error| Error::file(path, &e);
        let mut file = File::open(path).map_err(fail)?;
        file.seek(SeekFrom::Start(offset)).map_err(fail)?;
        Ok(Self { file, name, offset, first: true, read: Arc::new(AtomicU64::new(offset)) })
    }
}

impl Iterator for UploadParts {
    type Item = v1::UploadPart;

    /// An unreadable file ends the stream early, and the server reports that bytes are missing.
    fn next(&mut self) -> Option<v1::UploadPart> {
        let mut data = Vec::with_capacity(MESSAGE_PART_BYTES);
        let count = (&self.file).take(MESSAGE_PART_BYTES as u64).read_to_end(&mut data).unwrap_or(0);
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
