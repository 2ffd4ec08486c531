//! The registry of tenants.

use crate::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The name of a tenant: 1 to 32 characters of a-z, 0-9 and -. It is also the name of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Tenant(String);

impl Tenant {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Tenant {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=32).contains(&name.len()) && name.chars().all(plain) {
            return Ok(Self(name));
        }
        Err(Error::Config { reason: format!("invalid tenant name {name:?}: use 1 to 32 characters of a-z, 0-9 and -") })
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tenant in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name.
    pub name: Tenant,
    /// BLAKE3 hash of its bearer token in hexadecimal, as printed by `hetal-server token`.
    #[serde(default)]
    pub token: Option<Fingerprint>,
    /// BLAKE3 hash of its client certificate (DER) in hexadecimal.
    #[serde(default)]
    pub certificate: Option<Fingerprint>,
    /// Time of expiry in seconds since 1970.
    #[serde(default)]
    pub expires: Option<u64>,
}

/// The hash of a token or certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Hashes a token or certificate.
    pub fn of(shown: &[u8]) -> Self {
        Self(*blake3::hash(shown).as_bytes())
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let hash = blake3::Hash::from_hex(&text);
        let reason = || {
            "a fingerprint of a token or certificate must have 64 hexadecimal digits: see `hetal-server token`"
                .to_owned()
        };
        hash.map(|h| Self(*h.as_bytes())).map_err(|_| Error::Config { reason: reason() })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A tenant, and the hash of the token or certificate that identified him.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedTenant {
    /// The tenant.
    pub tenant: Tenant,
    /// The hash.
    pub credential: Fingerprint,
}

/// All tenants, by the fingerprints of their credentials. Only hashes are stored and compared, so
/// the time of a lookup reveals nothing about a token.
#[derive(Debug, Default)]
pub struct Tenants {
    tokens: HashMap<Fingerprint, (Tenant, u64)>,
    certificates: HashMap<Fingerprint, (Tenant, u64)>,
}

impl Tenants {
    /// Builds the registry of a configuration.
    pub fn new(configs: &[TenantConfig]) -> Result<Self> {
        let mut tenants = Self::default();
        for config in configs {
            let entry = (config.name.clone(), config.expires.unwrap_or(u64::MAX));
            let twice = |what| Error::Config { reason: format!("two tenants share the {what} of {}", config.name) };
            if let Some(token) = config.token
                && tenants.tokens.insert(token, entry.clone()).is_some()
            {
                return Err(twice("token"));
            }
            if let Some(certificate) = config.certificate
                && tenants.certificates.insert(certificate, entry).is_some()
            {
                return Err(twice("certificate"));
            }
        }
        Ok(tenants)
    }

    /// The names of all tenants.
    pub fn names(&self) -> BTreeSet<Tenant> {
        self.tokens.values().chain(self.certificates.values()).map(|(tenant, _)| tenant.clone()).collect()
    }

    /// Whether any tenant authenticates with a certificate.
    pub fn use_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Identifies a tenant by certificate, else by token, at a time in seconds since 1970.
    pub fn identify(
        &self,
        certificate: Option<Fingerprint>,
        token: Option<&str>,
        now: u64,
    ) -> Result<AuthenticatedTenant> {
        let by_certificate = certificate.and_then(|shown| Some((shown, self.certificates.get(&shown)?)));
        let token = token.map(|shown| Fingerprint::of(shown.as_bytes()));
        let by_token = token.and_then(|shown| Some((shown, self.tokens.get(&shown)?)));
        match by_certificate.or(by_token) {
            Some((credential, (tenant, expires))) if now < *expires => {
                Ok(AuthenticatedTenant { tenant: tenant.clone(), credential })
            }
            _ => Err(Error::Credentials),
        }
    }

    /// Whether a token or certificate belongs to a tenant, at a time in seconds since 1970.
    pub fn is_valid(&self, tenant: &Tenant, credential: Fingerprint, now: u64) -> bool {
        let found = [&self.certificates, &self.tokens].into_iter().filter_map(|all| all.get(&credential));
        found.into_iter().any(|(owner, expires)| owner == tenant && now < *expires)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(name: &str, token: Option<&str>, expires: Option<u64>) -> TenantConfig {
        let token = token.map(|t| Fingerprint::of(t.as_bytes()));
        TenantConfig { name: name.to_owned().try_into().unwrap(), token, certificate: None, expires }
    }

    #[test]
    fn tenants_are_known_by_what_they_show() {
        let mut second = config("second", None, None);
        second.certificate = Some(Fingerprint::of(b"certificate"));
        let tenants = Tenants::new(&[config("first", Some("abc"), Some(100)), second]).unwrap();
        let first = tenants.identify(None, Some("abc"), 99).unwrap();
        assert_eq!((first.tenant.as_str(), first.credential), ("first", Fingerprint::of(b"abc")));
        let second = tenants.identify(Some(Fingerprint::of(b"certificate")), None, 99).unwrap();
        assert_eq!((second.tenant.as_str(), second.credential), ("second", Fingerprint::of(b"certificate")));
        let is_valid =
            |identity: &AuthenticatedTenant, now| tenants.is_valid(&identity.tenant, identity.credential, now);
        assert!(is_valid(&first, 99) && !is_valid(&first, 100) && is_valid(&second, 100));
        assert!(!tenants.is_valid(&first.tenant, second.credential, 99));
        // Expired, wrong, a certificate's hash as a token, and no credentials.
        assert_eq!(tenants.identify(None, Some("abc"), 100), Err(Error::Credentials));
        assert_eq!(tenants.identify(None, Some("abd"), 99), Err(Error::Credentials));
        assert_eq!(tenants.identify(Some(Fingerprint::of(b"abc")), Some("certificate"), 99), Err(Error::Credentials));
        assert_eq!(tenants.identify(None, None, 99), Err(Error::Credentials));
        let names: Vec<_> = tenants.names().into_iter().map(|tenant| tenant.to_string()).collect();
        assert_eq!(names, ["first", "second"]);
        assert!(Tenants::new(&[config("a", Some("x"), None), config("b", Some("x"), None)]).is_err());
    }

    #[test]
    fn a_name_is_a_folder_and_nothing_else() {
        for bad in ["", "..", "a/b", "A", "a b", &"a".repeat(33)] {
            assert!(Tenant::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
