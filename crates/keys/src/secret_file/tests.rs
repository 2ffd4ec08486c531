use super::*;
use hetal_ring::sampler::TestSeeds;
use hetal_testkit::{TempDir, tiny_params};

fn key(label: u64) -> (Params, SecretKey) {
    let params = tiny_params();
    let secret = SecretKey::generate(&params, &mut TestSeeds::insecure(label));
    (params, secret)
}

#[test]
fn keys_come_back_and_files_are_the_owners_alone() {
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    for params in [tiny_params(), Params::named("insecure-toy11").unwrap()] {
        let secret = SecretKey::generate(&params, &mut TestSeeds::insecure(1));
        secret.save(&params, &path, None).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(SecretKey::load(&params, &path, None).unwrap().coefficients() == secret.coefficients());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_is_never_overwritten_and_nothing_is_left_after_a_failure() {
    let (params, secret) = key(1);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    std::fs::write(&path, b"precious").unwrap();
    assert_eq!(secret.save(&params, &path, None), Err(Error::Exists { path: path.clone() }));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // A name so long that the temporary one is too long for the file system.
    let long = dir.path().join("k".repeat(250));
    assert!(matches!(secret.save(&params, &long, None), Err(Error::Io { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let nowhere = dir.path().join("no/such/folder");
    assert!(matches!(secret.save(&params, &nowhere, None), Err(Error::Io { kind: ErrorKind::NotFound, .. })));
}

#[cfg(unix)]
#[test]
fn files_that_others_may_read_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (params, secret) = key(1);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    secret.save(&params, &path, None).unwrap();
    for mode in [0o644, 0o640, 0o604, 0o610, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = SecretKey::load(&params, &path, None).err().unwrap();
        assert_eq!(error, Error::Permissions { path: path.clone(), mode });
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    for mode in [0o600, 0o400] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(SecretKey::load(&params, &path, None).is_ok());
    }
    assert!(matches!(SecretKey::load(&params, dir.path(), None), Err(Error::NotAFile { .. })));
}

/// What is said to the file's bytes after `change`, with the checksum made right again or left as
/// it was.
fn error_after(rehash: bool, change: impl Fn(&mut Vec<u8>)) -> Error {
    let (params, secret) = key(1);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    secret.save(&params, &path, None).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    if rehash {
        let end = bytes.len() - CHECKSUM_LEN;
        let checksum = hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum);
    }
    std::fs::write(&path, &bytes).unwrap();
    SecretKey::load(&params, &path, None).err().unwrap()
}

#[test]
fn wrong_bytes_are_refused_with_the_reason() {
    let format = |rehash, change: fn(&mut Vec<u8>)| match error_after(rehash, change) {
        Error::Format { error, .. } => error,
        other => panic!("{other}"),
    };
    assert!(matches!(format(true, |b| b[1] = b'P'), FormatError::Magic { .. }));
    assert_eq!(format(true, |b| b[8] = 2), FormatError::Version { found: 2, known: 1 });
    assert!(matches!(error_after(true, |b| b[10] = 2), Error::Protection { kind: 2, .. }));
    // A plain file that says it is locked has no seal.
    assert!(matches!(format(true, |b| b[10] = 1), FormatError::Reserved { .. }));
    assert!(matches!(format(true, |b| b[12] = 1), FormatError::Reserved { .. }));
    assert!(matches!(format(true, |b| b[16] = 1), FormatError::Length { .. }));
    assert!(matches!(format(true, |b| b[30] ^= 1), FormatError::Params { .. }));
    assert!(matches!(format(false, |b| b.truncate(40)), FormatError::Truncated { .. }));
    assert!(matches!(format(false, |b| b.clear()), FormatError::Truncated { .. }));
    assert!(matches!(format(false, |b| b.truncate(100)), FormatError::Length { .. }));
    assert!(matches!(format(false, |b| b.push(0)), FormatError::Length { .. }));
    for at in [60, 200, 300] {
        let error = error_after(false, |b| b[at] ^= 1);
        assert!(matches!(error, Error::Format { error: FormatError::Checksum { .. }, .. }), "{at}: {error}");
    }
    // Another weight, and a coefficient of -2.
    for byte in [0, 0b10_10_10_10] {
        let error = error_after(true, |b| b[HEADER_LEN..HEADER_LEN + 40].fill(byte));
        assert!(matches!(error, Error::NotASecret { weight: 64, .. }), "{error}");
    }
    let error = error_after(true, |b| {
        // As many odd coefficients as before, but one more that is -2.
        let at = (HEADER_LEN..).find(|&at| b[at] == 0).unwrap();
        b[at] = 2;
    });
    assert!(matches!(error, Error::NotASecret { .. }), "{error}");
}

/// A file of format version 1, kept for ever. (In the repository its mode cannot be 0600.)
#[test]
fn version_1_is_still_read() {
    let stored = include_bytes!("../../tests/golden/v1/secret-key");
    let (params, secret) = key(2026);
    assert!(to_bytes(&secret, &params)[..] == stored[..]);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    create_new(&path).unwrap().write_all(stored).unwrap();
    assert!(SecretKey::load(&params, &path, None).unwrap().coefficients() == secret.coefficients());
}

#[test]
fn a_key_of_another_set_is_refused() {
    let (params, secret) = key(1);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    secret.save(&params, &path, None).unwrap();
    let other = Params::named("insecure-toy11").unwrap();
    let error = SecretKey::load(&other, &path, None).err().unwrap();
    assert!(matches!(error, Error::Format { error: FormatError::Params { .. }, .. }), "{error}");
}

#[test]
fn the_layout_of_coefficients_is_fixed() {
    assert_eq!(pack_four(&[1, 0, -1, 0]), 0b00_11_00_01);
    let secret = unpack(&[0b00_11_00_01, 0b11_01_00_00], 4).unwrap();
    assert_eq!(secret.coefficients(), [1, 0, -1, 0, 0, 0, 1, -1]);
}

#[test]
fn a_locked_key_needs_its_passphrase() {
    let (params, secret) = key(1);
    let dir = TempDir::new();
    let path = dir.path().join("secret");
    let passphrase = |text: &str| Passphrase::new(text.to_owned().into()).unwrap();
    secret.save(&params, &path, Some(&passphrase("correct horse"))).unwrap();
    assert!(is_locked(&path).unwrap());
    let load = |words: Option<&str>| SecretKey::load(&params, &path, words.map(passphrase).as_ref());
    let again = load(Some("correct horse")).unwrap();
    assert!(again.coefficients() == secret.coefficients() && again.id() == secret.id());
    assert!(matches!(load(None), Err(Error::Locked { .. })));
    assert!(matches!(load(Some("correct house")), Err(Error::Passphrase { .. })));
    let stored = std::fs::read(&path).unwrap();
    let packed = &to_bytes(&secret, &params)[HEADER_LEN..HEADER_LEN + 32];
    assert!(!stored.windows(packed.len()).any(|window| window == packed), "the key lies open in its file");
    // A checksum made right again does not help who changed the cost, the salt or a coefficient.
    for at in [HEADER_LEN + 8, HEADER_LEN + 14, HEADER_LEN + SEAL_LEN + 5] {
        let mut changed = stored.clone();
        changed[at] ^= 1;
        let end = changed.len() - CHECKSUM_LEN;
        let checksum = hash(&changed[..end]);
        changed[end..].copy_from_slice(&checksum);
        std::fs::write(&path, &changed).unwrap();
        assert!(matches!(load(Some("correct horse")), Err(Error::Passphrase { .. })), "{at}");
    }
    secret.save(&params, &dir.path().join("plain"), None).unwrap();
    assert!(!is_locked(&dir.path().join("plain")).unwrap());
}

#[test]
fn ids_name_secrets() {
    assert_eq!(key(1).1.id(), key(1).1.id());
    assert_ne!(key(1).1.id(), key(2).1.id());
}
