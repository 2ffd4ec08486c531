//! The tables of the database, and their migrations.

use super::connections::Db;
use super::rows::CLOCK;
use crate::{Error, Result};

/// A change of the tables.
struct Migration {
    sql: &'static str,
    /// Whether servers that do not know the change can still use the tables.
    is_addition: bool,
}

/// All changes of the tables, in order.
const MIGRATIONS: [Migration; 2] = [
    Migration { sql: include_str!("migrations/001.sql"), is_addition: false },
    Migration { sql: include_str!("migrations/002.sql"), is_addition: true },
];

/// The version that a server must know to use the tables: the number of changes that are no
/// additions.
fn version_of(migrations: &[Migration]) -> i64 {
    migrations.iter().filter(|migration| !migration.is_addition).count() as i64
}

/// The oldest version of PostgreSQL on which the tests were run, as the server numbers it.
const OLDEST_SERVER: i64 = 15_00_00;

/// Advisory locks of transactions. The first number tells ours from those of other programs.
pub const LOCK_CLASS: i32 = 0x6865_7461;
/// The lock of a migration.
pub const MIGRATION_LOCK: i32 = 1;
/// The lock of a claim.
pub const CLAIM_LOCK: i32 = 2;

/// The lock of whoever replaces the ownership mark.
pub const OWNERSHIP_LOCK: i32 = 3;
/// The lock of whoever looks at deadlines.
pub const DEADLINE_LOCK: i32 = 4;

/// Tables whose rows an erasure deletes by their tenant. Rows of the others go with them.
pub const ERASED: [&str; 4] = ["jobs", "uploads", "turns", "orphans"];
/// All tables that hold anything of tenants.
pub const OF_TENANTS: [&str; 10] =
    ["jobs", "uploads", "parts", "orphans", "turns", "specs", "checkpoints", "uses", "events", "verdicts"];

/// Waits for an advisory lock, which ends with the transaction.
pub fn lock(db: &Db<'_>, which: i32) -> Result<()> {
    db.all("SELECT pg_advisory_xact_lock($1, $2)", &[&LOCK_CLASS, &which]).map(|_| ())
}

/// Which changes the tables have.
struct Applied {
    /// The version that a server must know.
    version: i64,
    /// The number of changes, additions included. Servers that knew no additions did not count.
    steps: i64,
}

fn applied(db: &Db<'_>) -> Result<Applied> {
    let exists: bool = db.one("SELECT to_regclass('schema_version') IS NOT NULL", &[])?.try_get(0)?;
    if !exists {
        return Ok(Applied { version: 0, steps: 0 });
    }
    let version = db.number("SELECT version FROM schema_version", &[])?;
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_attribute
        WHERE attrelid = 'schema_version'::regclass AND attname = 'steps' AND NOT attisdropped)";
    let counted: bool = db.one(sql, &[])?.try_get(0)?;
    let steps = if counted { db.number("SELECT steps FROM schema_version", &[])? } else { version };
    Ok(Applied { version, steps })
}

/// Brings the tables up to date, within a transaction. Of several servers one does, others wait.
///
/// Tables with additions that this server does not know are used as they are, so that servers of
/// two versions work side by side.
pub fn migrate(db: &Db<'_>) -> Result<()> {
    lock(db, MIGRATION_LOCK)?;
    let Applied { version, steps } = applied(db)?;
    let newest = version_of(&MIGRATIONS);
    if version > newest {
        let reason = format!("the database has version {version} and this server knows {newest}: use a newer server");
        return Err(Error::Config { reason });
    }
    let done = usize::try_from(steps).map_err(|_| super::corrupt("the version of the tables"))?;
    let missing = MIGRATIONS.get(done..).unwrap_or_default();
    if missing.is_empty() {
        return Ok(());
    }
    if version == 0 {
        db.batch("CREATE TABLE schema_version (version BIGINT NOT NULL); INSERT INTO schema_version VALUES (0)")?;
    }
    db.batch("ALTER TABLE schema_version ADD COLUMN IF NOT EXISTS steps BIGINT NOT NULL DEFAULT 0")?;
    missing.iter().try_for_each(|step| db.batch(step.sql))?;
    let steps = MIGRATIONS.len() as i64;
    db.execute("UPDATE schema_version SET version = $1, steps = $2", &[&newest, &steps]).map(|_| ())
}

/// What a check of the configuration reports.
pub fn describe(db: &Db<'_>) -> Result<String> {
    let server: String = db.one("SELECT current_setting('server_version')", &[])?.try_get(0)?;
    let Applied { version, steps } = applied(db)?;
    let (newest, known) = (version_of(&MIGRATIONS), MIGRATIONS.len());
    let tables = match version {
        0 => "no tables yet".to_owned(),
        version => format!("tables of version {version}.{steps}, and this server's are of version {newest}.{known}"),
    };
    let sent = crate::clock::millis();
    let theirs = db.number(&format!("SELECT {CLOCK}"), &[])?;
    let received = crate::clock::millis();
    // As if the database had looked at its clock in the middle.
    let difference = theirs as f64 - (sent as f64 + received as f64) / 2.0;
    Ok(format!(
        "PostgreSQL {server}; {tables}; its clock is {:.3} s {} this machine's",
        difference.abs() / 1e3,
        if difference < 0.0 { "behind" } else { "ahead of" }
    ))
}

/// Checks that the server keeps what it acknowledges.
pub fn check_server(db: &Db<'_>) -> Result<()> {
    let setting = |name: &str| Ok::<String, Error>(db.one("SELECT current_setting($1)", &[&name])?.try_get(0)?);
    let refused = |reason: String| Err(Error::Config { reason });
    let version = setting("server_version_num")?.parse().unwrap_or(0);
    if version < OLDEST_SERVER {
        let shown = setting("server_version")?;
        return refused(format!("PostgreSQL {shown} is too old: use version {} or later", OLDEST_SERVER / 10_000));
    }
    if setting("server_encoding")? != "UTF8" {
        return refused("the database does not store UTF8: create it with ENCODING 'UTF8'".to_owned());
    }
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        if setting(name)? == "off" {
            return refused(format!("PostgreSQL loses acknowledged changes in a crash ({name} is off): turn it on"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::{PgSettings, PgState};
    use hetal_testkit::postgres::Postgres;
    use std::collections::BTreeSet;

    /// An erasure reaches every table: a new one is in the lists of tables, or goes with a row of
    /// another one.
    #[test]
    fn an_erasure_knows_all_tables_of_postgres() {
        let Some(server) = Postgres::shared() else { return };
        let url = server.database();
        drop(PgState::open(PgSettings::new(&url, None, None).unwrap()).unwrap());
        let words = |sql: &str| server.query(&url, sql).split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        let mut tables = words("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'");
        for general in ["schema_version", "identity", "duties"] {
            assert!(tables.remove(general), "{general}");
        }
        assert_eq!(tables, OF_TENANTS.map(str::to_owned).into());
        let erased = ERASED.map(|table| format!("'{table}'::regclass")).join(", ");
        let follow = format!(
            "SELECT conrelid::regclass FROM pg_constraint WHERE contype = 'f' AND confdeltype = 'c'
                AND confrelid IN ({erased})"
        );
        let mut reached = words(&follow);
        reached.extend(ERASED.map(str::to_owned));
        assert_eq!(tables, reached);
    }

    #[test]
    fn the_formats_name_the_version_of_the_tables() {
        let formats = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats.md");
        let text = std::fs::read_to_string(formats).unwrap();
        let version = format!("have version {}.{} ", version_of(&MIGRATIONS), MIGRATIONS.len());
        assert!(text.contains(&version), "docs/formats.md does not say that the tables {version}");
    }
}
