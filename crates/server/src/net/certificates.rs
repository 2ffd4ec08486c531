//! Certificates: loads the configured ones, or creates an authority and a certificate.

use crate::config::Config;
use crate::net::expiry;
use crate::store::disk::{Disk, OsDisk};
use crate::store::folder::write_private;
use crate::{Error, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// The path of the certificate authority, if the server created one.
pub fn authority_path(folder: &Path) -> PathBuf {
    folder.join("tls/authority.pem")
}

/// How long a certificate that the server creates is valid.
const VALIDITY: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
/// The validity begins earlier than the creation, for clients whose clocks are slow.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// Warnings about certificates of the server that have ended or end soon. There are none before the
/// first start.
pub fn certificate_warnings(config: &Config) -> Result<Vec<String>> {
    Ok(ServerCertificates::read(config)?.warnings(expiry::now()))
}

/// The certificates that a server presents, and the authority that it created.
#[derive(Default)]
pub struct ServerCertificates {
    /// Names and content (DER).
    all: Vec<(String, CertificateDer<'static>)>,
    /// How to renew them.
    advice: &'static str,
}

impl ServerCertificates {
    /// Reads the configured certificates, or those that the server created so far.
    pub fn read(config: &Config) -> Result<Self> {
        let made = [authority_path(&config.folder), config.folder.join("tls/server.pem")];
        let (files, advice) = match &config.certificate {
            Some(certificate) => (vec![certificate.clone()], "renew it and restart the server"),
            None => (
                made.into_iter().filter(|file| file.exists()).collect(),
                "stop the server, delete `folder/tls`, start it, and give clients the new authority.pem",
            ),
        };
        let mut all = Vec::new();
        for file in files {
            let name = format!("certificate {}", file.display());
            all.extend(certificates(&file)?.into_iter().map(|der| (name.clone(), der)));
        }
        Ok(Self { all, advice })
    }

    /// Warnings about certificates that have ended or end soon. `now` is in seconds since 1970.
    pub fn warnings(&self, now: u64) -> Vec<String> {
        let warnings = self.all.iter().filter_map(|(name, der)| expiry::warning(name, der, now));
        warnings.map(|warning| format!("{warning}: {}", self.advice)).collect()
    }

    /// Seconds until the first certificate ends, negative afterwards; `None` if no end is known.
    pub fn seconds_left(&self, now: u64) -> Option<i64> {
        let ends = self.all.iter().filter_map(|(_, der)| expiry::not_after(der));
        ends.min().map(|end| end as i64 - now as i64)
    }
}

/// Builds the TLS acceptor of a configuration.
pub fn acceptor(config: &Config) -> Result<TlsAcceptor> {
    let (certificate, key) = match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
        _ => made_certificate(&config.folder, &config.names)?,
    };
    let refuse = |e: rustls::Error| Error::Config { reason: format!("TLS: {e}") };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refuse)?;
    let builder = match &config.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(refuse)?;
            }
            // Tenants with tokens need no certificate.
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated();
            let verifier =
                verifier.build().map_err(|e| Error::Config { reason: format!("{}: {e}", path.display()) })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|e| Error::file(&key, e))?;
    let mut tls = builder.with_single_cert(certificates(&certificate)?, private).map_err(refuse)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates =
        CertificateDer::pem_file_iter(path).and_then(|all| all.collect::<std::result::Result<Vec<_>, _>>());
    certificates.map_err(|e| Error::file(path, e))
}

/// The certificate and key in the server's folder. They are created on first use, together with an
/// authority. The authority's key is discarded, so it can sign nothing else.
///
/// Clients trust the authority, so a new one never replaces one that was there before: if some of
/// the files are lost, the start is refused.
fn made_certificate(folder: &Path, names: &[String]) -> Result<(PathBuf, PathBuf)> {
    let tls = folder.join("tls");
    let (certificate, key) = (tls.join("server.pem"), tls.join("server.key"));
    let there = |file: &Path| file.try_exists().map_err(|e| Error::file(file, e));
    match (there(&certificate)?, there(&key)?, there(&authority_path(folder))?) {
        (true, true, _) => return Ok((certificate, key)),
        (false, false, false) => {}
        (has_certificate, ..) => {
            let lost = if has_certificate { &key } else { &certificate };
            let reason = format!(
                "{} is missing, but other files of the server's certificate are there: restore it from a backup, or \
                 delete {} to create a new authority, which all clients must then be given",
                lost.display(),
                tls.display()
            );
            return Err(Error::Config { reason });
        }
    }
    // The files appear together: a folder that an interrupted start has left is replaced.
    let scratch = folder.join("tls.new");
    if there(&scratch)? {
        std::fs::remove_dir_all(&scratch).map_err(|e| Error::file(&scratch, e))?;
    }
    std::fs::create_dir(&scratch).map_err(|e| Error::file(&scratch, e))?;
    write_certificates(&scratch, names)?;
    std::fs::rename(&scratch, &tls).map_err(|e| match e.kind() {
        ErrorKind::DirectoryNotEmpty => Error::Config {
            reason: format!("{} holds files that are not a certificate of the server: move them away", tls.display()),
        },
        _ => Error::file(&tls, e),
    })?;
    OsDisk.sync_folder(folder).map_err(|e| Error::file(folder, e))?;
    Ok((certificate, key))
}

/// Creates an authority and a certificate, and writes them to a folder.
fn write_certificates(folder: &Path, names: &[String]) -> Result<()> {
    let refuse = |e: rcgen::Error| Error::Config { reason: format!("cannot create a certificate for {names:?}: {e}") };
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "hetal server authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    limit_validity(&mut authority);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().map_err(refuse)?).map_err(refuse)?;
    let mut leaf = CertificateParams::new(names).map_err(refuse)?;
    leaf.distinguished_name.push(DnType::CommonName, "hetal server");
    limit_validity(&mut leaf);
    let leaf_key = KeyPair::generate().map_err(refuse)?;
    let leaf = leaf.signed_by(&leaf_key, &authority).map_err(refuse)?;
    write_private(&folder.join("authority.pem"), authority.pem().as_bytes())?;
    write_private(&folder.join("server.key"), leaf_key.serialize_pem().as_bytes())?;
    write_private(&folder.join("server.pem"), leaf.pem().as_bytes())?;
    OsDisk.sync_folder(folder).map_err(|e| Error::file(folder, e))
}

/// Makes a certificate valid from now on, for a limited time.
fn limit_validity(params: &mut CertificateParams) {
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(expiry::now());
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + VALIDITY;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;
    use std::collections::BTreeMap;

    #[test]
    fn created_certificates_end() {
        let dir = TempDir::new();
        let config = Config { folder: dir.path().to_owned(), ..Config::default() };
        assert!(certificate_warnings(&config).unwrap().is_empty(), "there are none yet");
        let (certificate, _) = made_certificate(dir.path(), &config.names).unwrap();
        assert!(certificate_warnings(&config).unwrap().is_empty());
        for file in [&certificate, &authority_path(dir.path())] {
            let der = certificates(file).unwrap().remove(0);
            let after = |duration: Duration| expiry::warning("it", &der, expiry::now() + duration.as_secs());
            assert!(after(VALIDITY / 2).is_none() && after(VALIDITY).is_some(), "{}", file.display());
        }
    }

    /// Clients trust the authority: files that are lost are asked for and not made anew.
    #[test]
    fn a_lost_file_never_replaces_the_authority() {
        for lost in
            [&["server.key"][..], &["server.pem"], &["server.pem", "server.key"], &["authority.pem", "server.pem"]]
        {
            let dir = TempDir::new();
            let names = Config::default().names;
            made_certificate(dir.path(), &names).unwrap();
            let files = || {
                let all = std::fs::read_dir(dir.path().join("tls")).unwrap().map(|entry| entry.unwrap().path());
                all.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect::<BTreeMap<_, _>>()
            };
            lost.iter().for_each(|file| std::fs::remove_file(dir.path().join("tls").join(file)).unwrap());
            let before = files();
            let refused = made_certificate(dir.path(), &names).unwrap_err().to_string();
            assert!(lost.iter().any(|file| refused.contains(&format!("{file} is missing"))), "{refused}");
            assert_eq!(files(), before, "{lost:?}");
        }
    }

    /// A first start that was interrupted leaves nothing that a later one takes for a certificate.
    #[test]
    fn an_interrupted_creation_is_begun_again() {
        let dir = TempDir::new();
        std::fs::create_dir_all(dir.path().join("tls.new")).unwrap();
        std::fs::write(dir.path().join("tls.new/authority.pem"), b"half").unwrap();
        let (certificate, key) = made_certificate(dir.path(), &Config::default().names).unwrap();
        assert!(certificate.exists() && key.exists() && !dir.path().join("tls.new").exists());
        assert_eq!(certificates(&authority_path(dir.path())).unwrap().len(), 1);
    }
}
