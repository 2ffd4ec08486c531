//! A site under load: many clients at once, and more and more workers. Both tests print what they
//! measure.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::site::{Member, Site};
use common::{address, config, names, owner, wishes};
use hetal_client::rpc::{Address, BlobName, EventKind, JobId, Remote, TrainingRequest};
use hetal_learn::{Verdict, Wishes};
use hetal_server::tenants::Fingerprint;
use hetal_testkit::{SetOnDrop, TempDir, Watchdog};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

const TENANTS: usize = 20;
/// Clients of each tenant. Each trains once.
const CLIENTS: usize = 10;
const WORKERS: usize = 4;
/// Iterations of a training: two epochs of two batches, each with a check at its end.
const ITERATIONS: u64 = 4;
/// Requests for the list of jobs that are timed while nobody trains.
const IDLE_LISTS: usize = 300;

/// A time limit far beyond the duration of these tests.
const LONGEST: Duration = Duration::from_secs(3600);

type Weights = Vec<(usize, BlobName)>;

fn token(tenant: usize) -> String {
    format!("token of tenant {tenant}")
}

/// A site with these tenants, whose jobs are not limited.
fn site(tenants: usize) -> Option<Site> {
    let mut site = Site::new()?;
    let table = |n: usize| {
        let token = Fingerprint::of(token(n).as_bytes());
        format!("[[tenants]]\nname = \"tenant-{n}\"\ntoken = \"{token}\"\n")
    };
    site.settings = "checkpoint_every = 2\n".to_owned();
    // On a real site they have machines of their own. Here they get what the gateways leave.
    site.prefix = vec!["chrt", "--idle", "0"];
    site.tables = format!("[bounds]\njobs = 100\n{}", (0..tenants).map(table).collect::<String>());
    Some(site)
}

/// Uploads everything for a training of [`ITERATIONS`].
fn upload(remote: &Remote) -> TrainingRequest {
    let wishes = Wishes { max_epochs: Some(2), check_every: Some(2), ..wishes() };
    TrainingRequest { wishes, ..owner().upload(remote) }
}

/// Follows a training to its end. `seen` gets the number of its iterations.
fn follow(remote: &Remote, job: JobId, seen: &dyn Fn(u64)) -> Weights {
    let mut watch = remote.watch(job, 0);
    loop {
        match watch.next_event().unwrap().unwrap().kind {
            EventKind::Progress(progress) => seen(progress.iterations),
            EventKind::Validation(v) => {
                let verdict = if v.round == 1 { Verdict::Continue } else { Verdict::Stop };
                remote.judge(job, v.round, verdict).unwrap();
            }
            EventKind::Finished(outputs) => {
                seen(ITERATIONS);
                return names(&outputs);
            }
            EventKind::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

/// What the training gives on a server of its own.
fn alone() -> Weights {
    let dir = TempDir::new();
    let running = hetal_server::start(config(dir.path())).unwrap();
    let remote = Remote::connect(&address(&running, common::TOKEN)).unwrap();
    let job = remote.train([1; 16], "", &upload(&remote)).unwrap();
    let weights = follow(&remote, job.id, &|_| {});
    running.stop();
    weights
}

/// What all clients share.
struct Load {
    trainings: [OnceLock<TrainingRequest>; TENANTS],
    /// Jobs that are queued.
    queued: AtomicUsize,
    /// Iterations of each client's job, by tenant.
    iterations: [[AtomicU64; CLIENTS]; TENANTS],
    /// Jobs of each tenant that have ended.
    ended: [AtomicUsize; TENANTS],
    /// The slowest tenant's share after each tenth of all iterations.
    tenths: Mutex<Vec<f64>>,
    /// The same when the first tenant had no job any more.
    at_first_end: OnceLock<f64>,
}

impl Load {
    fn new() -> Self {
        Self {
            trainings: [const { OnceLock::new() }; TENANTS],
            queued: AtomicUsize::new(0),
            iterations: [const { [const { AtomicU64::new(0) }; CLIENTS] }; TENANTS],
            ended: [const { AtomicUsize::new(0) }; TENANTS],
            tenths: Mutex::default(),
            at_first_end: OnceLock::new(),
        }
    }

    /// All iterations, and the slowest tenant's share of them relative to its fair share.
    fn share(&self) -> (u64, f64) {
        let of = |all: &[AtomicU64; CLIENTS]| all.iter().map(|n| n.load(Ordering::SeqCst)).sum::<u64>();
        let each: Vec<u64> = self.iterations.iter().map(of).collect();
        let (sum, least) = (each.iter().sum::<u64>(), each.iter().min().copied().unwrap_or(0));
        (sum, least as f64 * TENANTS as f64 / sum.max(1) as f64)
    }

    /// Notes the iterations of a client.
    fn note(&self, tenant: usize, client: usize, iterations: u64) {
        self.iterations[tenant][client].store(iterations, Ordering::SeqCst);
        let mut tenths = self.tenths.lock().unwrap();
        let (sum, share) = self.share();
        while sum * 10 >= (tenths.len() as u64 + 1) * ITERATIONS * (TENANTS * CLIENTS) as u64 {
            tenths.push(share);
        }
    }

    /// Trains as one client. Jobs are queued tenant after tenant, which is the least fair order.
    fn run(&self, tenant: usize, client: usize, address: &Address) -> Weights {
        let remote = Remote::connect(address).unwrap();
        let training = self.trainings[tenant].get_or_init(|| upload(&remote));
        while self.queued.load(Ordering::SeqCst) < tenant * CLIENTS + client {
            std::thread::sleep(Duration::from_millis(2));
        }
        let job = remote.train([client as u8; 16], "", training).unwrap();
        self.queued.fetch_add(1, Ordering::SeqCst);
        let weights = follow(&remote, job.id, &|iterations| self.note(tenant, client, iterations));
        if self.ended[tenant].fetch_add(1, Ordering::SeqCst) + 1 == CLIENTS {
            self.at_first_end.get_or_init(|| self.share().1);
        }
        weights
    }
}

/// Milliseconds, sorted: of requests for the list of jobs, and by how much a pause between them
/// was too long, which says how busy the machine is.
struct Times {
    lists: Vec<f64>,
    delays: Vec<f64>,
}

impl Times {
    /// Asks for lists until `enough`.
    fn of(remotes: &[Remote], enough: &dyn Fn(usize) -> bool) -> Self {
        const PAUSE: Duration = Duration::from_millis(20);
        let (mut lists, mut delays) = (Vec::new(), Vec::new());
        while !enough(lists.len()) {
            let begun = Instant::now();
            remotes[lists.len() % remotes.len()].jobs().unwrap();
            lists.push(begun.elapsed().as_secs_f64() * 1e3);
            let paused = Instant::now();
            std::thread::sleep(PAUSE);
            delays.push((paused.elapsed().saturating_sub(PAUSE)).as_secs_f64() * 1e3);
        }
        [&mut lists, &mut delays].into_iter().for_each(|times| times.sort_by(f64::total_cmp));
        Self { lists, delays }
    }

    fn print(&self, when: &str) {
        let [lists, delays] = [&self.lists, &self.delays].map(|times| [0.5, 0.9, 0.99].map(|share| at(times, share)));
        println!("ListJobs {when}, p50, p90 and p99 of {}: {lists:.1?} ms", self.lists.len());
        println!("too long a pause {when}, likewise: {delays:.1?} ms");
    }
}

/// The time below which a share of them lies.
fn at(times: &[f64], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize]
}

fn start_all(site: &Site, role: &'static str, count: usize) -> Vec<Member> {
    (1..=count).map(|n| site.start(&format!("{role} {n}"), role, &site.url)).collect()
}

/// 200 clients of 20 tenants queue a training each, and four workers do them.
#[test]
#[ignore = "takes minutes: cargo test -p hetal-server --test site_load -- --ignored --nocapture 200_clients"]
fn a_site_serves_200_clients_of_20_tenants() {
    let _watched = Watchdog::new(LONGEST);
    let Some(site) = site(TENANTS) else { return };
    let gateways = start_all(&site, "gateway", 2);
    let (load, over, expected) = (Load::new(), AtomicBool::new(false), alone());
    // A client begins at one gateway, and another one at the other.
    let address = |n: usize, tenant: usize| {
        let order = [n % gateways.len(), (n + 1) % gateways.len()];
        site.address(&order.map(|n| &gateways[n]), &token(tenant))
    };
    let lists: Vec<Remote> = (0..gateways.len()).map(|n| Remote::connect(&address(n, 0)).unwrap()).collect();
    let mut workers = Vec::new();
    let (results, busy, wall) = std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        let client = |n: usize| {
            let (load, address) = (&load, address(n, n / CLIENTS));
            scope.spawn(move || load.run(n / CLIENTS, n % CLIENTS, &address))
        };
        let clients: Vec<_> = (0..TENANTS * CLIENTS).map(client).collect();
        while load.queued.load(Ordering::SeqCst) < clients.len() {
            assert!(clients.iter().all(|client| !client.is_finished()), "a client gave up");
            std::thread::sleep(Duration::from_millis(10));
        }
        let begun = Instant::now();
        workers.extend(start_all(&site, "worker", WORKERS));
        let busy = scope.spawn(|| Times::of(&lists, &|_| over.load(Ordering::SeqCst)));
        let results: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        let wall = begun.elapsed();
        over.store(true, Ordering::SeqCst);
        let results: Vec<Weights> = results.into_iter().map(Result::unwrap).collect();
        (results, busy.join().unwrap(), wall)
    });
    let idle = Times::of(&lists, &|count| count == IDLE_LISTS);
    println!("{} trainings of {ITERATIONS} iterations in {wall:.0?}", results.len());
    let (share, tenths) = (load.at_first_end.get().copied().unwrap(), load.tenths.lock().unwrap());
    println!("the slowest tenant's share when the first one had no job left: {share:.2} of its fair share");
    println!("the same after each tenth of all iterations: {tenths:.2?}");
    busy.print("under load");
    idle.print("idle");
    println!("p99 under load over the idle median: {:.1}", at(&busy.lists, 0.99) / at(&idle.lists, 0.5));
    for (name, members) in [("gateways", &gateways), ("workers", &workers)] {
        println!("peak memory of the {name}, MiB: {:?}", members.iter().map(Member::peak).collect::<Vec<_>>());
    }
    assert!(results.iter().all(|weights| *weights == expected && !weights.is_empty()), "wrong weights under load");
    assert!(share > 0.5, "a tenant starved: {share}");
}

/// The same jobs with more and more workers, each on one thread.
#[test]
#[ignore = "takes minutes: cargo test -p hetal-server --test site_load -- --ignored --nocapture jobs_a_minute"]
fn jobs_a_minute_with_more_workers() {
    const JOBS: usize = 24;
    let _watched = Watchdog::new(LONGEST);
    let Some(mut site) = site(1) else { return };
    site.environment = vec![("RAYON_NUM_THREADS", "1")];
    let gateway = site.start("gateway", "gateway", &site.url);
    let remotes: Vec<_> = (0..JOBS).map(|_| Remote::connect(&site.address(&[&gateway], &token(0))).unwrap()).collect();
    let (training, expected) = (upload(&remotes[0]), alone());
    let (mut workers, mut alone) = (Vec::new(), None);
    for count in [1, 2, 4] {
        while workers.len() < count {
            workers.push(site.start(&format!("worker {}", workers.len()), "worker", &site.url));
        }
        let (begun, training, expected) = (Instant::now(), &training, &expected);
        std::thread::scope(|scope| {
            for (n, remote) in remotes.iter().enumerate() {
                scope.spawn(move || {
                    let mut request = [n as u8; 16];
                    request[0] = count as u8;
                    let job = remote.train(request, "", training).unwrap();
                    assert_eq!(follow(remote, job.id, &|_| {}), *expected);
                });
            }
        });
        let rate = JOBS as f64 / begun.elapsed().as_secs_f64() * 60.0;
        let ratio = rate / *alone.get_or_insert(rate);
        println!("{count} workers: {rate:.1} jobs a minute, {ratio:.2} times those of one");
    }
    println!("cores: {}", std::thread::available_parallelism().unwrap());
}
