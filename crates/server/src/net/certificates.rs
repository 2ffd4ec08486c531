//! Certificates: loads the configured ones, or creates an authority and a certificate.

use crate::config::Config;
use crate::net::expiry;
use crate::store::disk::{Disk, OsDisk};
use crate::{Error, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io::Write;
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
    let made = [authority_path(&config.folder), config.folder.join("tls/server.pem")];
    let (files, advice) = match &config.certificate {
        Some(certificate) => (vec![certificate.clone()], "renew it"),
        None => (
            made.into_iter().filter(|file| file.exists()).collect(),
            "stop the server, delete `folder/tls`, start it, and give clients the new authority.pem",
        ),
    };
    let (mut warnings, now) = (Vec::new(), expiry::now());
    for file in files {
        let name = format!("certificate {}", file.display());
        let found = certificates(&file)?;
        warnings.extend(found.iter().filter_map(|der| expiry::warning(&name, der, now)));
    }
    Ok(warnings.into_iter().map(|warning| format!("{warning}: {advice}")).collect())
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
fn made_certificate(folder: &Path, names: &[String]) -> Result<(PathBuf, PathBuf)> {
    let tls = folder.join("tls");
    let (certificate, key) = (tls.join("server.pem"), tls.join("server.key"));
    match (certificate.exists(), key.exists()) {
        (true, true) => return Ok((certificate, key)),
        // Clients trust the existing authority, so a new one must not replace it unasked.
        (true, false) => {
            let reason = format!(
                "{} is missing beside its certificate: restore it from a backup, or delete {} to create a new \
                 authority, which all clients must then be given",
                key.display(),
                tls.display()
            );
            return Err(Error::Config { reason });
        }
        (false, _) => {}
    }
    std::fs::create_dir_all(&tls).map_err(|e| Error::file(&tls, e))?;
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
    // The certificate is written last: if it exists, the other files do too.
    write_private(&authority_path(folder), authority.pem().as_bytes())?;
    write_private(&key, leaf_key.serialize_pem().as_bytes())?;
    write_private(&certificate, leaf.pem().as_bytes())?;
    OsDisk.sync_folder(&tls).map_err(|e| Error::file(&tls, e))?;
    Ok((certificate, key))
}

/// Makes a certificate valid from now on, for a limited time.
fn limit_validity(params: &mut CertificateParams) {
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(expiry::now());
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + VALIDITY;
}

/// Writes a file atomically, readable only by its owner.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = path.with_extension("new");
    let write = || {
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&scratch, path)
    };
    write().map_err(|e| Error::file(path, e))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    #[test]
    fn created_certificates_end_and_a_missing_key_creates_no_authority() {
        let dir = TempDir::new();
        let config = Config { folder: dir.path().to_owned(), ..Config::default() };
        assert!(certificate_warnings(&config).unwrap().is_empty(), "there are none yet");
        let (certificate, key) = made_certificate(dir.path(), &config.names).unwrap();
        assert!(certificate_warnings(&config).unwrap().is_empty());
        for file in [&certificate, &authority_path(dir.path())] {
            let der = certificates(file).unwrap().remove(0);
            let after = |duration: Duration| expiry::warning("it", &der, expiry::now() + duration.as_secs());
            assert!(after(VALIDITY / 2).is_none() && after(VALIDITY).is_some(), "{}", file.display());
        }
        let authority = std::fs::read(authority_path(dir.path())).unwrap();
        std::fs::remove_file(&key).unwrap();
        let refused = made_certificate(dir.path(), &config.names).unwrap_err().to_string();
        assert!(refused.contains("server.key is missing"), "{refused}");
        assert_eq!(std::fs::read(authority_path(dir.path())).unwrap(), authority);
    }
}
