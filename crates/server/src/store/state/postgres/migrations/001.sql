-- What version 8 of the SQLite database holds, in the same tables. Times are milliseconds since
-- 1970 on the clock of this database.
CREATE TABLE uploads (
    tenant TEXT NOT NULL, name BYTEA NOT NULL, kind BIGINT NOT NULL, size BIGINT NOT NULL, complete BOOLEAN NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE TABLE jobs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE, tenant TEXT NOT NULL, request BYTEA NOT NULL, body BYTEA NOT NULL,
    label TEXT NOT NULL, agreement TEXT,
    state BIGINT NOT NULL DEFAULT 0, round BIGINT NOT NULL DEFAULT 0, announced BIGINT NOT NULL DEFAULT 0,
    progress BYTEA,
    reason TEXT NOT NULL DEFAULT '', cancel BOOLEAN NOT NULL DEFAULT FALSE,
    created BIGINT NOT NULL, updated BIGINT NOT NULL, sequence BIGINT NOT NULL DEFAULT 0,
    worker TEXT, token BIGINT NOT NULL DEFAULT 0, until BIGINT NOT NULL DEFAULT 0,
    attempts BIGINT NOT NULL DEFAULT 0, rests BIGINT NOT NULL DEFAULT 0, lacked BIGINT NOT NULL DEFAULT 0,
    not_before BIGINT NOT NULL DEFAULT 0, spent BIGINT NOT NULL DEFAULT 0,
    bytes BIGINT NOT NULL DEFAULT 0, held BIGINT NOT NULL DEFAULT 0,
    UNIQUE (tenant, request)
) WITH (fillfactor = 70);
-- No index holds a column that workers change at every renewal or report, so that these changes
-- stay within their page.
CREATE UNIQUE INDEX jobs_of ON jobs (tenant, id);
CREATE INDEX jobs_listed ON jobs (tenant, number);
CREATE INDEX jobs_open ON jobs (tenant, number) WHERE state < 3;
CREATE INDEX jobs_states ON jobs (state);
CREATE TABLE specs (
    number BIGINT PRIMARY KEY REFERENCES jobs (number) ON DELETE CASCADE, work TEXT NOT NULL
);
CREATE TABLE checkpoints (
    number BIGINT PRIMARY KEY REFERENCES jobs (number) ON DELETE CASCADE, checkpoint TEXT NOT NULL
);
CREATE TABLE uses (
    job BYTEA NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, tenant TEXT NOT NULL, name BYTEA NOT NULL,
    PRIMARY KEY (tenant, name, job)
);
CREATE INDEX uses_of_job ON uses (job);
CREATE TABLE events (
    job BYTEA NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, sequence BIGINT NOT NULL, event BYTEA NOT NULL,
    PRIMARY KEY (job, sequence)
);
CREATE TABLE verdicts (
    job BYTEA NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, round BIGINT NOT NULL, verdict BIGINT NOT NULL,
    PRIMARY KEY (job, round)
);
CREATE TABLE turns (tenant TEXT PRIMARY KEY, turn BIGINT NOT NULL);
CREATE TABLE identity (
    id BYTEA NOT NULL, found TEXT NOT NULL DEFAULT '', intended TEXT NOT NULL DEFAULT '',
    checked BIGINT NOT NULL DEFAULT 0
);
INSERT INTO identity (id) VALUES (uuid_send(gen_random_uuid()));
