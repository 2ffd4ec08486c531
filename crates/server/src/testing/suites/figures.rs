//! Figures of the state with many ended jobs, for docs/benchmarks.md. They assert no time.
#![allow(clippy::unwrap_used)]

use super::state::{QUOTA, complete, new_job, tenant};
use crate::store::state::*;
use hetal_testkit::TempDir;
use hetal_testkit::postgres::Postgres;
use std::time::Instant;

/// Ended jobs: 1,000 of each of 100 tenants.
const ENDED: &str = "INSERT INTO jobs (id, tenant, request, body, label, state, created, updated)
    SELECT ID, 'tenant' || (n % 100), ID, ID, 'an ended job', 3, n, n FROM (SELECT NUMBERS) AS numbers";

/// Milliseconds: the median of some calls, and the longest.
fn times(count: usize, mut call: impl FnMut()) -> (f64, f64) {
    let mut all: Vec<f64> = (0..count)
        .map(|_| {
            let begun = Instant::now();
            call();
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() - 1])
}

fn measure(name: &str, state: &dyn State) {
    let (ann, quota) = (tenant("ann"), Quota { jobs: 1000, kept_jobs: 1000, ..QUOTA });
    complete(state, &ann, [1, 2, 3]);
    (1..=200).for_each(|n| _ = state.create_job(&ann, &new_job(n), &quota, 0).unwrap());
    let listed = tenant("tenant7");
    assert_eq!(state.jobs(&listed).unwrap().len(), 1000);
    let (list, longest) = times(50, || _ = state.jobs(&listed).unwrap());
    let begun = Instant::now();
    let mut claims = Vec::new();
    while let Some(claim) = state.claim("worker", 1, 60_000).unwrap() {
        claims.push(claim);
    }
    let a_second = claims.len() as f64 / begun.elapsed().as_secs_f64();
    let change = Change { spent: 1, ..Change::default() };
    let (commit, slowest) = times(100, || state.commit(&claims[0].lease, &change, 2).unwrap());
    println!(
        "{name}, 100,000 ended jobs: {a_second:.0} claims a second; ListJobs of 1,000 jobs {list:.2} ms (longest \
         {longest:.2}); a commit {commit:.2} ms (longest {slowest:.2})"
    );
    assert_eq!(claims.len(), 200);
}

#[test]
#[ignore = "prints figures: cargo test --release -p hetal-server --lib figures -- --ignored --nocapture"]
fn figures_of_many_ended_jobs() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let sqlite = SqliteState::open(&path).unwrap();
    let numbers = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 100000) SELECT n FROM s";
    let sql = ENDED.replace("SELECT NUMBERS", numbers).replace("ID", "CAST(printf('%016d', n) AS BLOB)");
    rusqlite::Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
    measure("SQLite", &sqlite);
    let Some(server) = Postgres::shared() else { return };
    let url = server.database();
    let postgres = PgState::open(PgSettings::new(&url, None, None).unwrap()).unwrap();
    let numbers = "SELECT n FROM generate_series(1, 100000) AS n";
    let sql = ENDED.replace("SELECT NUMBERS", numbers).replace("ID", "convert_to(lpad(n::text, 16, '0'), 'UTF8')");
    server.query(&url, &format!("{sql}; ANALYZE"));
    measure("PostgreSQL", &postgres);
}
