//! A site whose blobs are in a bucket that one of its members cannot reach for a while.
//!
//! `cargo test -p hetal-server --features s3-tests --test site_bucket`
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::owner;
use common::proxy::{Proxy, Weather};
use common::site::{Member, Site, name_of, results, wait_for_iterations};
use hetal_client::rpc::{BlobKind, Remote};
use hetal_server::testing::s3_server::{self, ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY};
use hetal_testkit::{TempDir, Watchdog};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A time limit far beyond the duration of these tests.
const LONGEST: Duration = Duration::from_secs(1800);

const WEATHERS: [Weather; 4] = [Weather::Cut, Weather::DeafServer, Weather::DeafClient, Weather::Silence];

/// A gateway and a worker, each with a proxy to their bucket.
struct BucketSite {
    gateway: Member,
    worker: Member,
    /// The gateway's proxy, and the worker's.
    proxies: [Proxy; 2],
    site: Site,
    bucket: TempDir,
    _runtime: Runtime,
}

impl BucketSite {
    fn new() -> Option<Self> {
        let mut site = Site::new()?;
        site.environment = vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)];
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bucket = TempDir::new();
        let port = s3_server::start(&runtime, bucket.path()).port();
        let proxies = [Proxy::to(port), Proxy::to(port)];
        let [gateway, worker] = [("gateway", &proxies[0]), ("worker", &proxies[1])].map(|(role, proxy)| {
            let words = [site.settings.as_str(), &site.tables, &table(proxy.port)].concat();
            site.start_with(role, role, &site.url, words)
        });
        Some(Self { gateway, worker, proxies, site, bucket, _runtime: runtime })
    }

    fn connect(&self) -> Remote {
        self.site.connect(&[&self.gateway])
    }
}

/// The table of a bucket that is reached at a port.
fn table(port: u16) -> String {
    format!(
        "[s3]\nbucket = \"{BUCKET}\"\nregion = \"nowhere-1\"\nendpoint = \"http://127.0.0.1:{port}\"\n\
         allow_http = true\n"
    )
}

/// Waits until a member has written something to its log.
fn wait_for_word(member: &Member, word: &str) {
    let begun = Instant::now();
    while !member.log().contains(word) {
        assert!(begun.elapsed() < Duration::from_secs(120), "it did not write {word:?}: {}", member.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The only worker cannot reach the bucket, or is not answered: its jobs wait and go on.
#[test]
fn a_worker_that_is_cut_off_from_its_bucket_goes_on() {
    let _watched = Watchdog::new(LONGEST);
    let Some(all) = BucketSite::new() else { return };
    let (remote, proxy) = (all.connect(), &all.proxies[1]);
    let training = owner().upload(&remote);
    for (n, weather) in WEATHERS.into_iter().enumerate() {
        let job = remote.train([n as u8; 16], "", &training).unwrap();
        let followed = std::thread::scope(|scope| {
            let follower = scope.spawn(|| results(&remote, job.id));
            wait_for_iterations(&remote, job.id, 1);
            let before = proxy.met();
            proxy.set(weather);
            proxy.wait_until_met(before);
            std::thread::sleep(Duration::from_secs(5));
            if weather == Weather::Cut {
                // The job goes back to the queue.
                wait_for_word(&all.worker, "the job is retried");
            }
            let ended = all.site.query("SELECT COUNT(*) FROM jobs WHERE state >= 3");
            assert_eq!(ended, n.to_string(), "{weather:?}: a job ended without its bucket");
            proxy.set(Weather::Fair);
            follower.join().unwrap()
        });
        assert_eq!(followed, owner().reference(), "{weather:?}");
    }
    let attempts = all.worker.log().matches("attempt begins").count();
    println!("{} requests met the weather, {attempts} attempts at 4 jobs", proxy.met());
}

/// The only gateway cannot reach the bucket, or is not answered: uploads wait and go on.
#[test]
fn an_upload_waits_for_the_bucket() {
    let _watched = Watchdog::new(LONGEST);
    let Some(all) = BucketSite::new() else { return };
    let (remote, proxy) = (all.connect(), &all.proxies[0]);
    for (n, weather) in WEATHERS.into_iter().enumerate() {
        let (path, before) = (all.site.large_file(40 << 20, n as u64), proxy.met());
        let uploaded = std::thread::scope(|scope| {
            scope.spawn(|| {
                proxy.wait_until_met(before);
                std::thread::sleep(Duration::from_secs(5));
                proxy.set(Weather::Fair);
            });
            let mut begun = false;
            remote.upload(BlobKind::Keys, &path, &mut |held, size| {
                if !begun && held > size / 3 {
                    begun = true;
                    proxy.set(weather);
                }
            })
        });
        let uploaded = uploaded.unwrap();
        println!("{weather:?}: {} bytes, {} of them sent twice", uploaded.size, uploaded.sent - uploaded.size);
        let blob = all.bucket.path().join(BUCKET).join("ann/uploads").join(uploaded.name.to_string());
        assert_eq!(name_of(&blob), uploaded.name, "{weather:?}");
    }
}
