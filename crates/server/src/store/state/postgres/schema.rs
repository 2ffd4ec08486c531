//! The tables of the database, and their migrations.

use super::connections::Db;
use super::rows::CLOCK;
use crate::{Error, Result};

/// The migration to each version from the one before.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/001.sql")];
/// The oldest version of PostgreSQL on which the tests were run, as the server numbers it.
const OLDEST_SERVER: i64 = 15_00_00;

/// Advisory locks of transactions. The first number tells ours from those of other programs.
pub const LOCK_CLASS: i32 = 0x6865_7461;
/// The lock of a migration.
const MIGRATION_LOCK: i32 = 1;
/// The lock of a claim.
pub const CLAIM_LOCK: i32 = 2;

/// The lock of whoever replaces the ownership mark.
pub const OWNERSHIP_LOCK: i32 = 3;

/// Waits for an advisory lock, which ends with the transaction.
pub fn lock(db: &Db<'_>, which: i32) -> Result<()> {
    db.all("SELECT pg_advisory_xact_lock($1, $2)", &[&LOCK_CLASS, &which]).map(|_| ())
}

/// The version of the tables; 0 if there are none.
pub fn version(db: &Db<'_>) -> Result<i64> {
    let sql = "SELECT to_regclass('schema_version') IS NOT NULL";
    let exists: bool = db.one(sql, &[])?.try_get(0)?;
    if exists { db.number("SELECT version FROM schema_version", &[]) } else { Ok(0) }
}

/// Brings the tables up to date, within a transaction. Of several servers one does, others wait.
pub fn migrate(db: &Db<'_>) -> Result<()> {
    lock(db, MIGRATION_LOCK)?;
    let version = version(db)?;
    let newest = MIGRATIONS.len();
    let missing = usize::try_from(version).ok().and_then(|version| MIGRATIONS.get(version..));
    let missing = missing.ok_or_else(|| Error::Config {
        reason: format!("the database has version {version} and this server knows {newest}: use a newer server"),
    })?;
    if version == 0 {
        db.batch("CREATE TABLE schema_version (version BIGINT NOT NULL); INSERT INTO schema_version VALUES (0)")?;
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.iter().try_for_each(|step| db.batch(step))?;
    db.execute("UPDATE schema_version SET version = $1", &[&(newest as i64)]).map(|_| ())
}

/// What a check of the configuration reports.
pub fn describe(db: &Db<'_>) -> Result<String> {
    let server: String = db.one("SELECT current_setting('server_version')", &[])?.try_get(0)?;
    let tables = match version(db)? {
        0 => "no tables yet".to_owned(),
        version => format!("tables of version {version}, and this server's are of version {}", MIGRATIONS.len()),
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
