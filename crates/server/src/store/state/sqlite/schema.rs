//! The tables of the database, and their migrations.

/// The tables of version 1. `turn` counts claims, so that tenants are served in turn independently
/// of the clock.
pub const V1: &str = "
CREATE TABLE uploads (
    tenant TEXT NOT NULL, name BLOB NOT NULL, kind INTEGER NOT NULL, size INTEGER NOT NULL, complete INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, request BLOB NOT NULL, label TEXT NOT NULL, work TEXT NOT NULL,
    state INTEGER NOT NULL, round INTEGER NOT NULL DEFAULT 0, checkpoint TEXT, progress BLOB,
    reason TEXT NOT NULL DEFAULT '', cancel INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL, updated INTEGER NOT NULL, sequence INTEGER NOT NULL DEFAULT 0,
    worker TEXT, token INTEGER NOT NULL DEFAULT 0, until INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, request)
) STRICT;
CREATE TABLE uses (
    job BLOB NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, tenant TEXT NOT NULL, name BLOB NOT NULL,
    PRIMARY KEY (tenant, name, job)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
    job BLOB NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, sequence INTEGER NOT NULL, event BLOB NOT NULL,
    PRIMARY KEY (job, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE verdicts (
    job BLOB NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, round INTEGER NOT NULL, verdict INTEGER NOT NULL,
    PRIMARY KEY (job, round)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
";

/// Version 2 adds the time spent on a job, and an index that makes a lookup of another tenant's job
/// indistinguishable from a lookup of a job that never existed.
const V2: &str = "
ALTER TABLE jobs ADD COLUMN spent INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX jobs_of ON jobs (tenant, id);
PRAGMA user_version = 2;
";

/// Version 3 adds the bytes of a job's outputs (0 for older jobs) and the identity by which blobs
/// know their database.
const V3: &str = "
ALTER TABLE jobs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE TABLE identity (id BLOB NOT NULL) STRICT;
INSERT INTO identity VALUES (randomblob(16));
PRAGMA user_version = 3;
";

/// Version 4 adds the bytes of a checkpoint's blobs (0 for older checkpoints).
const V4: &str = "
ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 4;
";

/// Version 5 adds the ownership marks (see `ownership`): the one last found beside the blobs, and
/// the one intended to replace it.
const V5: &str = "
ALTER TABLE identity ADD COLUMN found TEXT NOT NULL DEFAULT '';
ALTER TABLE identity ADD COLUMN intended TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 5;
";

/// Version 6 adds backoffs, the counts of backoffs and of attempts without enough memory since the
/// last checkpoint, and the agreement of a training apart from its large spec.
const V6: &str = "
ALTER TABLE jobs ADD COLUMN not_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN rests INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN lacked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN agreement TEXT;
UPDATE jobs SET agreement = json_extract(work, '$.Training.agreement') WHERE json_valid(work);
PRAGMA user_version = 6;
";

/// Version 7 keeps small columns in `jobs` only, so that no query of many jobs reads large values:
/// specs and checkpoints have tables of their own, and queries of the queue use an index of the
/// jobs that have not ended. `turns` remembers when each tenant was served last, also after his
/// jobs are deleted, until he has no uploads either. `body` is the hash of the request that created
/// a job (unknown for older jobs), and `checked` changes when a health check writes.
const V7: &str = "
CREATE TABLE specs (
    number INTEGER PRIMARY KEY REFERENCES jobs (number) ON DELETE CASCADE, work TEXT NOT NULL
) STRICT;
INSERT INTO specs SELECT number, work FROM jobs;
CREATE TABLE checkpoints (
    number INTEGER PRIMARY KEY REFERENCES jobs (number) ON DELETE CASCADE, checkpoint TEXT NOT NULL
) STRICT;
INSERT INTO checkpoints SELECT number, checkpoint FROM jobs WHERE checkpoint IS NOT NULL;
CREATE TABLE turns (tenant TEXT PRIMARY KEY, turn INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO turns SELECT tenant, MAX(turn) FROM jobs GROUP BY tenant;
ALTER TABLE jobs DROP COLUMN work;
ALTER TABLE jobs DROP COLUMN checkpoint;
ALTER TABLE jobs DROP COLUMN turn;
ALTER TABLE jobs ADD COLUMN body BLOB;
CREATE INDEX jobs_open ON jobs (tenant, until) WHERE state < 3;
CREATE INDEX jobs_totals ON jobs (tenant, state, bytes, held);
ALTER TABLE identity ADD COLUMN checked INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 7;
";

/// Version 8 adds the last round that the owner was told of, because several rounds wait for
/// verdicts. Jobs of earlier versions that wait for a verdict return to the queue, where a worker
/// finds that it cannot resume them and tells their owners.
const V8: &str = "
ALTER TABLE jobs ADD COLUMN announced INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET announced = round;
UPDATE jobs SET state = 0 WHERE state = 2;
PRAGMA user_version = 8;
";

/// Tables whose rows an erasure deletes by their tenant. Rows of the others go with them.
pub const ERASED: [&str; 3] = ["jobs", "uploads", "turns"];

/// The migration to each version from the one before.
pub const MIGRATIONS: [&str; 8] = [V1, V2, V3, V4, V5, V6, V7, V8];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    /// An erasure reaches every table: a new one is in the list of tables, or goes with a row of
    /// another one.
    #[test]
    fn an_erasure_knows_all_tables_of_sqlite() {
        let db = Connection::open_in_memory().unwrap();
        MIGRATIONS.iter().for_each(|step| db.execute_batch(step).unwrap());
        let words = |sql: &str| {
            let mut rows = db.prepare(sql).unwrap();
            rows.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap).collect::<Vec<_>>()
        };
        let tables = words("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'identity'");
        assert!(tables.len() > ERASED.len());
        for table in tables {
            let parents =
                words(&format!("SELECT \"table\" FROM pragma_foreign_key_list('{table}') WHERE on_delete = 'CASCADE'"));
            let is_erased = |table: &String| ERASED.contains(&table.as_str());
            assert!(is_erased(&table) || parents.iter().any(is_erased), "rows of {table} survive an erasure");
        }
    }

    #[test]
    fn the_formats_name_the_version_of_the_database() {
        let formats = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats.md");
        let text = std::fs::read_to_string(formats).unwrap();
        let version = format!("`PRAGMA user_version` {} ", MIGRATIONS.len());
        assert!(text.contains(&version), "docs/formats.md does not name {version}");
    }
}
