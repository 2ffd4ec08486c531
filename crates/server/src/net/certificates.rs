//! Certificates: loads the configured ones, or creates an authority and a certificate.

use crate::config::Config;
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
use tokio_rustls::TlsAcceptor;

/// The path of the certificate authority, if the server created one.
pub fn authority_path(folder: &Path) -> PathBuf {
    folder.join("tls/authority.pem")
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
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    std::fs::create_dir_all(&tls).map_err(|e| Error::file(&tls, e))?;
    let refuse = |e: rcgen::Error| Error::Config { reason: format!("cannot create a certificate for {names:?}: {e}") };
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "hetal server authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().map_err(refuse)?).map_err(refuse)?;
    let mut leaf = CertificateParams::new(names).map_err(refuse)?;
    leaf.distinguished_name.push(DnType::CommonName, "hetal server");
    let leaf_key = KeyPair::generate().map_err(refuse)?;
    let leaf = leaf.signed_by(&leaf_key, &authority).map_err(refuse)?;
    // The certificate is written last: if it exists, the other files do too.
    write_private(&authority_path(folder), authority.pem().as_bytes())?;
    write_private(&key, leaf_key.serialize_pem().as_bytes())?;
    write_private(&certificate, leaf.pem().as_bytes())?;
    OsDisk.sync_folder(&tls).map_err(|e| Error::file(&tls, e))?;
    Ok((certificate, key))
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
