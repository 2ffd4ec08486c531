//! The tables of the database, and their migrations.

/// The tables of version 1. `turn` counts claims, so that tenants can be served in turn whatever the clock does.
pub const SCHEMA: &str = "
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

/// What version 2 adds: the time a job took, and an index by which another tenant's job is found missing exactly like one that never was.
const SECOND: &str = "
ALTER TABLE jobs ADD COLUMN spent INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX jobs_of ON jobs (tenant, id);
PRAGMA user_version = 2;
";

/// What version 3 adds: the bytes of what a job left (of jobs before it they are not known), and a name by which the blobs beside the
/// database know it.
const THIRD: &str = "
ALTER TABLE jobs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE TABLE identity (id BLOB NOT NULL) STRICT;
INSERT INTO identity VALUES (randomblob(16));
PRAGMA user_version = 3;
";

/// What version 4 adds: the bytes of the blobs that a job's checkpoint names (of checkpoints before it they are not known).
const FOURTH: &str = "
ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 4;
";

/// What version 5 adds: the marks by which the blobs know this copy of the database from others (`pairing`): the one that was found beside
/// them last, and the one that was to take its place.
const FIFTH: &str = "
ALTER TABLE identity ADD COLUMN found TEXT NOT NULL DEFAULT '';
ALTER TABLE identity ADD COLUMN intended TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 5;
";

/// What version 6 adds: until when a job rests, and how often it did so, or lacked memory, since its last checkpoint; and of trainings
/// what their owners see of the work, which is large.
const SIXTH: &str = "
ALTER TABLE jobs ADD COLUMN not_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN rests INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN lacked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN agreement TEXT;
UPDATE jobs SET agreement = json_extract(work, '$.Training.agreement') WHERE json_valid(work);
PRAGMA user_version = 6;
";

/// Every version's step from the one before.
pub const MIGRATIONS: [&str; 6] = [SCHEMA, SECOND, THIRD, FOURTH, FIFTH, SIXTH];
