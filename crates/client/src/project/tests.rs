use super::settings::VERSION;
use super::*;
use hetal_testkit::TempDir;

#[test]
fn a_project_is_one_program_s_at_a_time_and_of_one_set() {
    let folder = TempDir::new();
    let root = folder.path().join("p");
    assert!(matches!(Project::existing(&root), Err(Error::NoProject { .. })));
    let mut project = Project::open(&root, Some("insecure-toy11")).unwrap();
    assert!(matches!(Project::open(&root, None), Err(Error::InUse { .. })));
    let released = ReleaseBudget { noise: 1e-6, numbers: 10, security: 10, left: 3 };
    project.update(|s| s.released = Some(released)).unwrap();
    std::fs::write(root.join("x.0.unfinished"), b"half").unwrap();
    drop(project);
    let project = Project::existing(&root).unwrap();
    assert_eq!(project.settings().released, Some(released));
    assert!(!root.join("x.0.unfinished").exists());
    drop(project);
    // Before the first key, nothing depends on the parameter set.
    let mut project = Project::open(&root, Some("insecure-toy12")).unwrap();
    assert_eq!(project.settings().set, "insecure-toy12");
    project.update(|s| s.key_id = Some("a key".to_owned())).unwrap();
    drop(project);
    assert!(matches!(Project::open(&root, Some("full")), Err(Error::OtherSet { .. })));
}

#[test]
fn a_project_in_use_can_be_looked_at() {
    let folder = TempDir::new();
    assert!(matches!(Project::open_without_lock(folder.path()), Err(Error::NoProject { .. })));
    let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
    let mut other = Project::open_without_lock(folder.path()).unwrap();
    assert_eq!(other.settings().set, "insecure-toy11");
    assert!(matches!(other.update(|s| s.locked = true), Err(Error::InUse { .. })));
    project.update(|s| s.key_id = Some("a key".to_owned())).unwrap();
    drop(project);
    // Changes of the other process are kept.
    other.update(|s| s.locked = true).unwrap();
    let project = Project::existing(folder.path()).unwrap();
    assert_eq!((project.settings().locked, project.settings().key_id.as_deref()), (true, Some("a key")));
}

#[test]
fn names_stay_inside_the_folder() {
    let folder = TempDir::new();
    let project = Project::open(folder.path(), None).unwrap();
    for bad in ["", "..", "a/b", "a\\b", ".hidden", "ü", &"x".repeat(65)] {
        assert!(matches!(project.model(bad), Err(Error::Name { .. })), "{bad}");
    }
    assert!(project.job("first-2").unwrap().is_dir());
}

#[test]
fn retired_secrets_are_kept_and_nothing_else_is() {
    let folder = TempDir::new();
    let mut project = Project::open(folder.path(), None).unwrap();
    let (blob, layout) = ("00".to_owned(), "any".to_owned());
    let file = "keys-any.hetal".to_owned();
    let keys = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
    let released = |left| Some(ReleaseBudget { noise: 1e-6, numbers: 10, security: 10, left });
    for k in 1..=3 {
        project.adopt_key(format!("key {k}"), released(u64::from(k))).unwrap();
        std::fs::write(project.secret(), [k]).unwrap();
        std::fs::write(project.key_file(&keys), b"keys").unwrap();
        project.update(|s| s.keys = vec![keys.clone()]).unwrap();
        project.retire_keys().unwrap();
        assert!(!project.secret().exists() && !project.key_file(&keys).exists());
        let settings = project.settings();
        assert_eq!((settings.keys.len(), &settings.key_id, settings.released), (0, &None, None));
        assert_eq!(std::fs::read(folder.path().join(format!("old/secret-{k}.key"))).unwrap(), [k]);
        if k == 2 {
            // A removed key leaves a gap that is not filled.
            let first = folder.path().join("old/secret-1.key");
            std::fs::remove_file(first.with_extension("json")).unwrap();
            std::fs::remove_file(first).unwrap();
        }
    }
    // A restored key has its old budget; an unknown key has the budget that the caller gives.
    project.adopt_key("key 2".to_owned(), released(10)).unwrap();
    assert_eq!(project.settings().released, released(2));
    project.adopt_key("key 4".to_owned(), None).unwrap();
    assert_eq!(project.settings().released, None);
}

/// Projects of version 1 have one key set or none and do not record whether it was sent.
#[test]
fn projects_of_version_1_are_read() {
    let folder = TempDir::new();
    let open = |keys: &str| {
        let text = format!("{{\"version\":1,\"set\":\"full\",\"keys\":{keys},\"released\":null}}");
        std::fs::write(folder.path().join("project.json"), text).unwrap();
        Project::existing(folder.path()).unwrap().settings().clone()
    };
    assert!(open("null").keys.is_empty());
    let settings = open("{\"blob\":\"00\",\"bytes\":1,\"layout\":\"any\",\"seconds\":1.0}");
    assert_eq!((settings.keys[0].file.as_str(), settings.keys[0].sent), ("keys.hetal", true));
    assert_eq!(settings.version, VERSION);
}

#[test]
fn files_of_key_sets_stay_inside_the_folder() {
    let folder = TempDir::new();
    for bad in ["/etc/keys.hetal", "../keys.hetal", "keys/../../keys.hetal", "secret.key", "project.json", "lock"] {
        let mut project = Project::open(folder.path(), None).unwrap();
        let (blob, layout, file) = ("00".to_owned(), "any".to_owned(), bad.to_owned());
        let keys = KeySet { blob, bytes: 1, layout, shape: None, file, seconds: 1.0, sent: true };
        project.update(|s| s.keys = vec![keys]).unwrap();
        drop(project);
        assert!(matches!(Project::open(folder.path(), None), Err(Error::Damaged { .. })), "{bad}");
        std::fs::remove_file(folder.path().join("project.json")).unwrap();
    }
}

/// If the locked secret key is lost, its successor still needs a passphrase.
#[test]
fn an_empty_secret_leaves_the_lock() {
    let folder = TempDir::new();
    let mut project = Project::open(folder.path(), None).unwrap();
    project.adopt_key("key".to_owned(), None).unwrap();
    project.update(|s| s.locked = true).unwrap();
    std::fs::write(project.secret(), b"").unwrap();
    project.retire_keys().unwrap();
    assert!(project.settings().locked);
}

/// Without `project.json` the count of what was published would start again.
#[test]
fn lost_settings_are_not_made_anew() {
    let folder = TempDir::new();
    let mut project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
    std::fs::write(project.secret(), b"a key").unwrap();
    project.adopt_key("key".to_owned(), None).unwrap();
    drop(project);
    std::fs::remove_file(folder.path().join("project.json")).unwrap();
    for opened in [
        Project::open(folder.path(), None),
        Project::existing(folder.path()),
        Project::open_without_lock(folder.path()),
    ] {
        let error = opened.err().unwrap();
        assert!(matches!(error, Error::SettingsLost { .. }), "{error}");
        assert!(error.to_string().contains("keys restore"), "{error}");
    }
    assert!(!folder.path().join("project.json").exists());
}

#[test]
fn damaged_state_is_named() {
    let folder = TempDir::new();
    drop(Project::open(folder.path(), None).unwrap());
    std::fs::write(folder.path().join("project.json"), b"{\"version\": 1").unwrap();
    let error = Project::open(folder.path(), None).err().unwrap();
    assert!(error.to_string().contains("project.json"), "{error}");
}
