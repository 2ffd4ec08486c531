//! Downloads from a hub on the loopback interface.
#![cfg(feature = "hub")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_features::device::DeviceChoice;
use hetal_features::hub::{DownloadStep, Hub, PinnedModel, SILENCE_TIMEOUT};
use hetal_features::{Error, Extractor, sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the files of a folder as `/owner/small/resolve/REVISION/FILE`; returns the address and
/// the requests.
fn serve(folder: PathBuf) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            log.lock().unwrap().push(path.clone());
            let file = path.strip_prefix(&format!("/owner/small/resolve/{REVISION}/")).map(|name| folder.join(name));
            let answer = match file.map(std::fs::read) {
                Some(Ok(body)) => {
                    let head =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                    [head.into_bytes(), body].concat()
                }
                _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
            };
            stream.write_all(&answer).ok();
        }
    });
    (address, asked)
}

fn model(folder: &Path) -> PinnedModel {
    common::write_sentence_model(folder, "bert");
    PinnedModel::new("owner/small", REVISION, &sha256(&folder.join("model.safetensors")).unwrap()).unwrap()
}

#[test]
fn a_pinned_model_is_downloaded_once_and_works() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    let (address, asked) = serve(there.path().to_owned());
    let hub = Hub { address, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let mut bytes = 0;
    let count = |step: DownloadStep| match step {
        DownloadStep::Coming { done, .. } => bytes = bytes.max(done),
        other => panic!("{other:?}"),
    };
    let folder = hub.fetch(&pin, count).unwrap();
    assert!(bytes > 1000);
    let expected = Extractor::open(there.path()).unwrap().extract_text("play some jazz").unwrap();
    let extractor = Extractor::pinned(&folder, &pin, DeviceChoice::Cpu).unwrap();
    assert_eq!(extractor.extract_text("play some jazz").unwrap(), expected);
    assert_eq!(
        (extractor.identity().source.as_str(), extractor.identity().revision.as_deref()),
        ("owner/small", Some(REVISION))
    );
    let count = asked.lock().unwrap().len();
    assert_eq!(hub.fetch(&pin, |_| {}).unwrap(), folder);
    assert_eq!(asked.lock().unwrap().len(), count, "asked again for what is there");
    // Weights that changed since are refused.
    let weights = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    assert!(Extractor::pinned(&folder, &pin, DeviceChoice::Cpu).err().unwrap().to_string().contains("SHA-256"));
}

/// Names of files of a folder and the folders in it.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
        match entry.is_dir() {
            true => names.extend(self::names(&entry).into_iter().map(|inside| format!("{name}/{inside}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

/// A copy that an earlier version left incomplete is completed once.
#[test]
fn an_incomplete_copy_is_completed() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    std::fs::write(there.path().join("tokenizer_config.json"), r#"{"model_max_length": 5}"#).unwrap();
    let (address, asked) = serve(there.path().to_owned());
    let hub = Hub { address, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let folder = here.path().join("owner--small").join(REVISION);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(there.path().join(file), folder.join(file)).unwrap();
    }
    hub.fetch(&pin, |_| {}).unwrap();
    let asked_for = |file: &str| asked.lock().unwrap().iter().filter(|path| path.ends_with(file)).count();
    assert_eq!((asked_for("/tokenizer_config.json"), asked_for("/model.safetensors")), (1, 0));
    let whole = Extractor::pinned(&folder, &pin, DeviceChoice::Cpu).unwrap();
    assert_eq!(whole.identity().preprocessing, Extractor::open(there.path()).unwrap().identity().preprocessing);
    // What was fetched counts as much as what was there.
    assert!(whole.identity().files.contains_key("tokenizer_config.json"));
    // Nothing is left over, and without a hub the same comes out.
    let after = names(&folder);
    assert!(after.iter().all(|name| !name.ends_with(".part")), "{after:?}");
    assert!(after.contains(&"modules.json.absent".to_owned()), "{after:?}");
    let nobody = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let alone = Hub { address: nobody, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    assert_eq!(alone.fetch(&pin, |_| {}).unwrap(), folder);
    assert_eq!(names(&folder), after);
}

/// An incomplete copy is used as it is if there is no network, or if its folder cannot be written
/// to.
#[test]
fn a_copy_without_a_hub_is_used_as_it_was() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    let nobody = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let hub = Hub { address: nobody, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let folder = here.path().join("owner--small").join(REVISION);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(there.path().join(file), folder.join(file)).unwrap();
    }
    assert!(hub.fetch(&pin, |_| {}).is_err(), "the weights are not there");
    std::fs::copy(there.path().join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let before = names(&folder);
    let mut without = Vec::new();
    let mut hear = |step: DownloadStep| match step {
        DownloadStep::Without { file, reason } => without.push((file.to_owned(), reason.to_owned())),
        other => panic!("{other:?}"),
    };
    assert_eq!(hub.fetch(&pin, &mut hear).unwrap(), folder);
    // No folder can be made in the place of a file.
    std::fs::write(folder.join("modules.json"), "[]").unwrap();
    std::fs::write(folder.join("1_Pooling"), "").unwrap();
    assert_eq!(hub.fetch(&pin, &mut hear).unwrap(), folder);
    assert_eq!(
        without.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(),
        ["modules.json", "1_Pooling/config.json"]
    );
    std::fs::remove_file(folder.join("modules.json")).unwrap();
    std::fs::remove_file(folder.join("1_Pooling")).unwrap();
    assert_eq!(names(&folder), before);
    Extractor::pinned(&folder, &pin, DeviceChoice::Cpu).unwrap();
    // What must be there must be.
    std::fs::remove_file(folder.join("config.json")).unwrap();
    assert!(hub.fetch(&pin, |_| {}).is_err());
}

/// Two programs that download the same model at the same time do not disturb each other.
#[test]
fn a_model_is_fetched_by_one_at_a_time() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    let (address, asked) = serve(there.path().to_owned());
    let folder = here.path().join("owner--small").join(REVISION);
    std::fs::create_dir_all(&folder).unwrap();
    // Another one's download, of which so much has come.
    let part = folder.join("config.json.part");
    let mut other = std::fs::File::create(&part).unwrap();
    other.lock().unwrap();
    other.write_all(b"{\"half\":").unwrap();
    let hub = Hub { address, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let heard = Mutex::new(Vec::new());
    let hear = |step: DownloadStep| {
        if let DownloadStep::Waiting(file) = step {
            heard.lock().unwrap().push(file.to_owned());
        }
    };
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| hub.fetch(&pin, &hear));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!fetched.is_finished(), "it did not wait");
        assert_eq!(std::fs::read(&part).unwrap(), b"{\"half\":");
        // It says so, and asks for nothing that it cannot keep yet.
        assert_eq!((&heard.lock().unwrap()[..], asked.lock().unwrap().len()), (&["config.json".to_owned()][..], 0));
        // The other one ends, without having got anywhere.
        drop(other);
        assert_eq!(fetched.join().unwrap().unwrap(), folder);
    });
    assert!(Extractor::pinned(&folder, &pin, DeviceChoice::Cpu).is_ok());
    assert!(names(&folder).iter().all(|name| !name.ends_with(".part")), "{:?}", names(&folder));
}

#[test]
fn other_bytes_than_pinned_are_refused() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut pin = model(there.path());
    pin.sha256 = "0".repeat(64);
    let (address, cache) = (serve(there.path().to_owned()).0, here.path().to_owned());
    let hub = Hub { address, token: None, cache, silence_timeout: SILENCE_TIMEOUT };
    let error = hub.fetch(&pin, |_| {}).unwrap_err().to_string();
    assert!(error.contains("SHA-256"), "{error}");
    assert!(names(here.path()).iter().all(|name| !name.contains("model.safetensors")), "{:?}", names(here.path()));
}

#[test]
fn missing_models_are_reported() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    std::fs::remove_file(there.path().join("model.safetensors")).unwrap();
    let (address, cache) = (serve(there.path().to_owned()).0, here.path().to_owned());
    let hub = Hub { address, token: None, cache, silence_timeout: SILENCE_TIMEOUT };
    assert!(hub.fetch(&pin, |_| {}).unwrap_err().to_string().contains("no model.safetensors"));
    // A port nobody listens on any more.
    let address = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let hub = Hub { address, token: None, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let error = hub.fetch(&pin, |_| {}).unwrap_err();
    assert!(matches!(&error, Error::Download { reason, .. } if reason.contains("give its folder")), "{error}");
    for (name, revision) in [("small", REVISION), ("../x/y", REVISION), ("owner/..", REVISION), ("owner/small", "main")]
    {
        assert!(PinnedModel::new(name, revision, &"0".repeat(64)).is_err(), "{name} {revision}");
    }
    assert!(PinnedModel::new("owner/small", REVISION, "").unwrap_err().to_string().contains("--sha256"));
}

#[test]
fn a_silent_hub_and_too_large_files_are_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    // Says nothing; says how much will come and then nothing more; says that too much will come.
    std::thread::spawn(move || {
        let heads = ["", "Content-Length: 100\r\n", "Content-Length: 99999999\r\n"];
        let streams: Vec<_> = heads
            .iter()
            .zip(listener.incoming())
            .map(|(head, stream)| {
                let mut stream = stream.unwrap();
                if !head.is_empty() {
                    write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n{{").unwrap();
                }
                stream
            })
            .collect();
        std::thread::park();
        drop(streams);
    });
    let cache = here.path().to_owned();
    let hub = Hub { address, token: None, cache, silence_timeout: std::time::Duration::from_millis(300) };
    for expected in ["timeout", "nothing came for", "more than"] {
        let error = hub.fetch(&pin, |_| {}).unwrap_err();
        assert!(matches!(&error, Error::Download { reason, .. } if reason.contains(expected)), "{expected}: {error}");
    }
}

/// Answers every request in the same way; returns the address and the heads of the requests.
fn answer_all(host: &str, answer: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = format!("http://{host}:{}", listener.local_addr().unwrap().port());
    let heads = Arc::new(Mutex::new(Vec::new()));
    let log = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            log.lock().unwrap().push(head.join("\n").to_lowercase());
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    (address, heads)
}

/// A token is for the hub alone: not for a host it redirects to, not over an open line, and in no
/// message.
#[test]
fn a_token_is_sent_to_the_hub_alone() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pin = model(there.path());
    let refusal = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (elsewhere, heard_elsewhere) = answer_all("localhost", refusal.to_owned());
    let redirect =
        format!("HTTP/1.1 302 Found\r\nLocation: {elsewhere}/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let (address, heard) = answer_all("127.0.0.1", redirect);
    let token = Some("a-secret-token".to_owned());
    let hub = Hub { address, token: token.clone(), cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    let error = hub.fetch(&pin, |_| {}).unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("HF_TOKEN") && !error.contains("a-secret"), "{error}");
    let (heard, heard_elsewhere) = (heard.lock().unwrap(), heard_elsewhere.lock().unwrap());
    assert!(heard[0].contains("authorization: bearer a-secret-token"), "{heard:?}");
    assert!(heard_elsewhere.len() == 1 && !heard_elsewhere[0].contains("secret"), "{heard_elsewhere:?}");

    // The address of this machine by a name that does not say so.
    let (address, heard) = answer_all("localhost", refusal.to_owned());
    let address = address.replace("localhost", "LOCALHOST");
    let hub = Hub { address, token, cache: here.path().to_owned(), silence_timeout: SILENCE_TIMEOUT };
    hub.fetch(&pin, |_| {}).unwrap_err();
    assert!(heard.lock().unwrap().iter().all(|head| !head.contains("secret")), "{heard:?}");
}
