-- What several servers agree on: parts of uploads, duties, blobs that nobody references, and
-- deadlines of verdicts. Servers of the version before do not notice it.
ALTER TABLE uploads ADD COLUMN holder TEXT, ADD COLUMN held_until BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN token BIGINT NOT NULL DEFAULT 0, ADD COLUMN store_id TEXT;
CREATE TABLE parts (
    tenant TEXT NOT NULL, name BYTEA NOT NULL, number BIGINT NOT NULL, size BIGINT NOT NULL, hash BYTEA NOT NULL,
    receipt TEXT NOT NULL, head BYTEA NOT NULL,
    PRIMARY KEY (tenant, name, number),
    FOREIGN KEY (tenant, name) REFERENCES uploads (tenant, name) ON DELETE CASCADE
);
-- `acted` is when the duty was last done.
CREATE TABLE duties (name TEXT PRIMARY KEY, holder TEXT, until BIGINT NOT NULL, acted BIGINT NOT NULL);
CREATE TABLE orphans (
    tenant TEXT NOT NULL, place TEXT NOT NULL, since BIGINT NOT NULL, PRIMARY KEY (tenant, place)
);
-- Unknown for jobs that were moved here from an SQLite database of before its version 7.
ALTER TABLE jobs ALTER COLUMN body DROP NOT NULL;
-- `due` is when the verdict on `due_round` is due, and `last_worker` has the keys of the job on its
-- disk. `ready` is when the job last became claimable.
ALTER TABLE jobs ADD COLUMN due BIGINT, ADD COLUMN due_round BIGINT, ADD COLUMN last_worker TEXT,
    ADD COLUMN ready BIGINT NOT NULL DEFAULT 0;
