//! Takes over the rows of an SQLite database, in one transaction.

use super::connections::Db;
use super::schema::{MIGRATION_LOCK, lock};
use super::{PgState, storable};
use crate::{Error, Result};
use rusqlite::Connection;
use rusqlite::types::Value;
use std::path::Path;
use tokio_postgres::types::{ToSql, Type};

/// The tables in the order of their references, with their columns. Leases do not come along: no
/// worker has a job of a stopped server.
const TABLES: [(&str, &str); 8] = [
    ("uploads", "tenant, name, kind, size, complete"),
    (
        "jobs",
        "number, id, tenant, request, body, label, agreement, state, round, announced, progress, reason, cancel, \
         created, updated, sequence, token, attempts, rests, lacked, spent, bytes, held",
    ),
    ("specs", "number, work"),
    ("checkpoints", "number, checkpoint"),
    ("uses", "job, tenant, name"),
    ("events", "job, sequence, event"),
    ("verdicts", "job, round, verdict"),
    ("turns", "tenant, turn"),
];

/// The identity and the marks of a database, by which blobs know it.
pub struct DatabaseIdentity {
    pub id: Vec<u8>,
    pub found: String,
    pub intended: String,
}

impl PgState {
    /// Takes over everything of an SQLite database, or nothing. Returns the number of rows; `None`
    /// if that was done before. A database with other content is refused.
    pub(crate) fn import(&self, sqlite: &Path, identity: &DatabaseIdentity) -> Result<Option<u64>> {
        self.connections.transaction(super::Access::Write, |db| {
            lock(db, MIGRATION_LOCK)?;
            if db.one("SELECT id = $1 FROM identity", &[&identity.id])?.try_get(0)? {
                return Ok(None);
            }
            let sql = "SELECT EXISTS (SELECT 1 FROM uploads) OR EXISTS (SELECT 1 FROM jobs)
                OR EXISTS (SELECT 1 FROM identity WHERE intended <> '')";
            if db.one(sql, &[])?.try_get(0)? {
                let reason = "the PostgreSQL database is in use: move the folder into an empty one".to_owned();
                return Err(Error::Config { reason });
            }
            let from = Connection::open(sqlite)?;
            let mut rows = 0;
            for (table, columns) in TABLES {
                rows += copy_table(db, &from, table, columns)?;
            }
            let next = "SELECT setval(pg_get_serial_sequence('jobs', 'number'), GREATEST(MAX(number), 1)) FROM jobs";
            db.all(next, &[])?;
            db.execute("UPDATE jobs SET state = 0 WHERE state = 1", &[])?;
            let sql = "UPDATE identity SET id = $1, found = $2, intended = $3";
            db.execute(sql, &[&identity.id, &identity.found, &identity.intended])?;
            Ok(Some(rows))
        })
    }
}

fn copy_table(db: &Db<'_>, from: &Connection, table: &str, columns: &str) -> Result<u64> {
    let count = columns.split(',').count();
    let places: Vec<_> = (1..=count).map(|n| format!("${n}")).collect();
    let keeps_numbers = if table == "jobs" { "OVERRIDING SYSTEM VALUE" } else { "" };
    let insert = format!("INSERT INTO {table} ({columns}) {keeps_numbers} VALUES ({})", places.join(", "));
    let types = db.types(&insert)?;
    let mut statement = from.prepare(&format!("SELECT {columns} FROM {table}"))?;
    let (mut rows, mut copied) = (statement.query([])?, 0);
    while let Some(row) = rows.next()? {
        let broken = |what: &dyn std::fmt::Display| Error::State {
            reason: format!(
                "row {} of the table {table} cannot be moved ({what}): delete that job or upload on the server that \
                 holds it, and move the rest",
                copied + 1
            ),
        };
        let mut values = Vec::with_capacity(count);
        for (index, kind) in types.iter().enumerate() {
            let value = row.get::<_, Value>(index).map_err(|e| broken(&e))?;
            values.push(convert(value, kind).ok_or_else(|| broken(&format!("column {}", index + 1)))?);
        }
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value).collect();
        db.execute(&insert, &values)?;
        copied += 1;
    }
    Ok(copied)
}

/// A value as PostgreSQL stores it.
fn convert(value: Value, kind: &Type) -> Option<Box<dyn ToSql + Sync>> {
    Some(match (value, kind) {
        (Value::Integer(n), &Type::INT8) => Box::new(n),
        (Value::Integer(n), &Type::BOOL) => Box::new(n != 0),
        (Value::Text(text), &Type::TEXT) => Box::new(storable(&text).into_owned()),
        (Value::Blob(bytes), &Type::BYTEA) => Box::new(bytes),
        (Value::Null, &Type::TEXT) => Box::new(None::<String>),
        // The hash of a request that a server of before version 7 served. It was not kept.
        (Value::Null, &Type::BYTEA) => Box::new(None::<Vec<u8>>),
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::SqliteState;
    use hetal_testkit::TempDir;
    use std::collections::BTreeSet;

    /// Columns that do not move: leases and backoffs.
    const LEFT_BEHIND: [(&str, &str); 3] = [("jobs", "worker"), ("jobs", "until"), ("jobs", "not_before")];

    /// A new column of SQLite moves too, or is left behind on purpose.
    #[test]
    fn every_column_moves() {
        let dir = TempDir::new();
        let path = dir.path().join("state.sqlite");
        drop(SqliteState::open(&path).unwrap());
        let db = Connection::open(&path).unwrap();
        let sql = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
            WHERE t.type = 'table' AND t.name <> 'identity'";
        let mut rows = db.prepare(sql).unwrap();
        let found = rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
        let found = found.collect::<rusqlite::Result<BTreeSet<_>>>().unwrap();
        let pair = |table: &str, column: &str| (table.to_owned(), column.trim().to_owned());
        let moved = TABLES.iter().flat_map(|(table, columns)| columns.split(',').map(|column| pair(table, column)));
        let known: BTreeSet<_> = moved.chain(LEFT_BEHIND.map(|(table, column)| pair(table, column))).collect();
        assert_eq!(found, known);
    }
}
