//! What servers that share a database agree on: uploads in parts, duties, orphans and deadlines.

use super::connections::Db;
use super::rows::*;
use super::schema::{DEADLINE_LOCK, lock};
use super::{PgState, corrupt};
use crate::store::parts::StoredPart;
use crate::store::state::shared::{Duty, HOLD_MILLIS, SharedState, UploadHold};
use crate::store::state::{Millis, Upload, upload_in_use};
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::{BlobName, JobId};
use tokio_postgres::Row;

/// The error of a server that lost the right to add to an upload.
fn taken(name: BlobName) -> Error {
    Error::Busy { message: format!("another server receives blob {name}: begin the upload again") }
}

fn parse_part(row: &Row) -> Result<StoredPart> {
    let hash = row.try_get::<_, &[u8]>(1)?.try_into().map_err(|_| corrupt("the hash of a part"))?;
    Ok(StoredPart { size: unsigned(row, 0)?, hash, receipt: row.try_get(2)?, head: row.try_get(3)? })
}

/// The parts of an upload, in order and without a gap.
fn list_parts(db: &Db<'_>, tenant: &Tenant, name: BlobName) -> Result<Vec<StoredPart>> {
    let sql = "SELECT size, hash, receipt, head, number FROM parts WHERE tenant = $1 AND name = $2 ORDER BY number";
    let rows = db.all(sql, &[&tenant.as_str(), &&name.0[..]])?;
    for (index, row) in rows.iter().enumerate() {
        if row.try_get::<_, i64>(4)? != index as i64 {
            return Err(corrupt("the number of a part"));
        }
    }
    rows.iter().map(parse_part).collect()
}

/// Changes an upload that this hold still has.
fn change_held(db: &Db<'_>, hold: &UploadHold, change: &str) -> Result<()> {
    let sql = format!(
        "UPDATE uploads SET held_until = {CLOCK} + {HOLD_MILLIS}, {change}
            WHERE tenant = $1 AND name = $2 AND token = $3 AND NOT complete"
    );
    match db.execute(&sql, &[&hold.tenant.as_str(), &&hold.name.0[..], &(hold.token as i64)])? {
        0 => Err(taken(hold.name)),
        _ => Ok(()),
    }
}

fn delete_parts(db: &Db<'_>, tenant: &Tenant, name: BlobName) -> Result<()> {
    let sql = "DELETE FROM parts WHERE tenant = $1 AND name = $2";
    db.execute(sql, &[&tenant.as_str(), &&name.0[..]]).map(|_| ())
}

impl SharedState for PgState {
    fn hold_upload(&self, tenant: &Tenant, name: BlobName, server: &str) -> Result<UploadHold> {
        self.write(|db| {
            let sql = format!(
                "UPDATE uploads SET holder = $3, held_until = {CLOCK} + {HOLD_MILLIS}, token = token + 1
                    WHERE tenant = $1 AND name = $2 AND (holder IS NULL OR holder = $3
                        OR held_until <= {CLOCK} OR held_until > {CLOCK} + {HOLD_MILLIS})
                    RETURNING token, store_id"
            );
            let Some(row) = db.optional(&sql, &[&tenant.as_str(), &&name.0[..], &server])? else {
                find_upload(db, tenant, name)?.ok_or(Error::NoBlob { name })?;
                return Err(taken(name));
            };
            let (token, store_id) = (unsigned(&row, 0)?, row.try_get::<_, Option<String>>(1)?);
            let parts = if store_id.is_some() { list_parts(db, tenant, name)? } else { Vec::new() };
            Ok(UploadHold { tenant: tenant.clone(), name, token, store_id, parts })
        })
    }

    fn begin_parts(&self, hold: &UploadHold, store_id: &str) -> Result<()> {
        self.write(|db| {
            change_held(db, hold, "complete = FALSE")?;
            delete_parts(db, &hold.tenant, hold.name)?;
            let sql = "UPDATE uploads SET store_id = $3 WHERE tenant = $1 AND name = $2";
            db.execute(sql, &[&hold.tenant.as_str(), &&hold.name.0[..], &store_id]).map(|_| ())
        })
    }

    fn add_part(&self, hold: &UploadHold, part: &StoredPart) -> Result<()> {
        self.write(|db| {
            change_held(db, hold, "complete = FALSE")?;
            // Repeated after a commit of which nobody knew, it changes nothing.
            let sql = "INSERT INTO parts (tenant, name, number, size, hash, receipt, head)
                VALUES ($1, $2, $3, $4, $5, $6, $7)
                ON CONFLICT (tenant, name, number) DO UPDATE SET size = EXCLUDED.size, hash = EXCLUDED.hash,
                    receipt = EXCLUDED.receipt, head = EXCLUDED.head";
            let (tenant, name, number) = (hold.tenant.as_str(), &hold.name.0[..], hold.parts.len() as i64);
            let (size, hash) = (part.size as i64, &part.hash[..]);
            db.execute(sql, &[&tenant, &name, &number, &size, &hash, &part.receipt, &part.head]).map(|_| ())
        })
    }

    fn drop_parts(&self, hold: &UploadHold) -> Result<()> {
        self.write(|db| {
            change_held(db, hold, "store_id = NULL")?;
            delete_parts(db, &hold.tenant, hold.name)
        })
    }

    fn confirm_hold(&self, hold: &UploadHold) -> Result<()> {
        self.write(|db| change_held(db, hold, "complete = FALSE"))
    }

    fn finish_upload(&self, hold: &UploadHold) -> Result<()> {
        self.write(|db| {
            change_held(db, hold, "complete = TRUE, store_id = NULL, holder = NULL")?;
            delete_parts(db, &hold.tenant, hold.name)
        })
    }

    fn bytes_in_parts(&self, tenant: &Tenant, name: BlobName) -> Result<u64> {
        let sql = "SELECT COALESCE(SUM(p.size), 0)::bigint FROM parts p JOIN uploads u USING (tenant, name)
            WHERE p.tenant = $1 AND p.name = $2 AND u.store_id IS NOT NULL";
        self.read(|db| unsigned(&db.one(sql, &[&tenant.as_str(), &&name.0[..]])?, 0))
    }

    fn is_received_by(&self, tenant: &Tenant, name: BlobName, server: &str) -> Result<bool> {
        let sql = "SELECT COUNT(*) FROM uploads WHERE tenant = $1 AND name = $2 AND holder = $3 AND NOT complete";
        self.read(|db| Ok(db.number(sql, &[&tenant.as_str(), &&name.0[..], &server])? > 0))
    }

    fn revoke_upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<String>> {
        self.write(|db| {
            // A job that is created meanwhile would use it.
            lock_tenant(db, tenant)?;
            let sql = "SELECT COUNT(*) FROM uses WHERE tenant = $1 AND name = $2";
            if db.number(sql, &[&tenant.as_str(), &&name.0[..]])? > 0 {
                return Err(upload_in_use(name));
            }
            let sql = "SELECT store_id FROM uploads WHERE tenant = $1 AND name = $2 FOR UPDATE";
            let row = db.optional(sql, &[&tenant.as_str(), &&name.0[..]])?.ok_or(Error::NoBlob { name })?;
            // A server that is killed before it deletes the row leaves an upload that begins again.
            let sql = "UPDATE uploads SET complete = FALSE, token = token + 1, store_id = NULL
                WHERE tenant = $1 AND name = $2";
            db.execute(sql, &[&tenant.as_str(), &&name.0[..]])?;
            delete_parts(db, tenant, name)?;
            Ok(row.try_get(0)?)
        })
    }

    fn delete_unneeded(
        &self,
        tenant: &Tenant,
        name: BlobName,
        is_needed: fn(&Upload) -> bool,
        delete: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        self.connections.once(|db| {
            // `delete` waits for the blobs, which may be slow.
            db.batch("SET LOCAL idle_in_transaction_session_timeout = '5min'")?;
            lock_tenant(db, tenant)?;
            if find_upload(db, tenant, name)?.as_ref().is_some_and(is_needed) {
                return Ok(false);
            }
            delete().map(|()| true)
        })
    }

    fn uploads_in_parts(&self, tenant: &Tenant) -> Result<Vec<(BlobName, String)>> {
        let sql = "SELECT name, store_id FROM uploads WHERE tenant = $1 AND store_id IS NOT NULL";
        let parse = |row: &Row| {
            let name = row.try_get::<_, &[u8]>(0)?.try_into().map_err(|_| corrupt("an upload's name"))?;
            Ok((name, row.try_get(1)?))
        };
        self.read(|db| db.all(sql, &[&tenant.as_str()])?.iter().map(parse).collect())
    }

    fn take_duty(&self, duty: Duty, server: &str, length: Millis) -> Result<bool> {
        let sql = format!(
            "INSERT INTO duties (name, holder, until, acted) VALUES ($1, $2, {CLOCK} + $3::bigint, {CLOCK})
                ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, until = EXCLUDED.until, acted = EXCLUDED.acted
                WHERE duties.holder = $2 OR duties.until <= {CLOCK} OR duties.until > {CLOCK} + 2 * $3::bigint"
        );
        Ok(self.autocommit(|db| db.execute(&sql, &[&duty.name(), &server, &(length as i64)]))? > 0)
    }

    fn end_duty(&self, duty: Duty, server: &str) -> Result<()> {
        let sql = "UPDATE duties SET until = 0 WHERE name = $1 AND holder = $2";
        self.autocommit(|db| db.execute(sql, &[&duty.name(), &server])).map(|_| ())
    }

    fn record_orphan(&self, tenant: &Tenant, place: &str, grace: Millis) -> Result<bool> {
        let sql = format!(
            "INSERT INTO orphans VALUES ($1, $2, {CLOCK})
                ON CONFLICT (tenant, place) DO UPDATE SET since = LEAST(orphans.since, EXCLUDED.since)
                RETURNING since <= {CLOCK} - $3::bigint"
        );
        self.autocommit(|db| Ok(db.one(&sql, &[&tenant.as_str(), &place, &(grace as i64)])?.try_get(0)?))
    }

    fn forget_orphans_except(&self, tenant: &Tenant, places: &[String]) -> Result<()> {
        let sql = "DELETE FROM orphans WHERE tenant = $1 AND place <> ALL ($2)";
        self.autocommit(|db| db.execute(sql, &[&tenant.as_str(), &places])).map(|_| ())
    }

    fn servers(&self) -> Result<Vec<String>> {
        let sql = "SELECT holder FROM uploads WHERE holder IS NOT NULL UNION SELECT holder FROM duties
            WHERE holder IS NOT NULL UNION SELECT last_worker FROM jobs WHERE last_worker IS NOT NULL
            UNION SELECT worker FROM jobs WHERE worker IS NOT NULL ORDER BY 1";
        self.read(|db| db.all(sql, &[])?.iter().map(|row| Ok(row.try_get(0)?)).collect())
    }

    fn tenants_of_orphans(&self) -> Result<Vec<Tenant>> {
        let rows = self.read(|db| db.all("SELECT DISTINCT tenant FROM orphans", &[]))?;
        let parse = |row: &Row| Tenant::try_from(row.try_get::<_, String>(0)?).map_err(|_| corrupt("a tenant"));
        rows.iter().map(parse).collect()
    }

    fn advance_deadlines(&self, limit: Millis, pause: Millis, lease: Millis) -> Result<Vec<(JobId, u32)>> {
        self.write(|db| {
            lock(db, DEADLINE_LOCK)?;
            let now = self.now(db, 0)?;
            forgive_gap(db, now, pause)?;
            let lease = lease as i64;
            let answered = format!("UPDATE jobs j SET due = NULL WHERE due IS NOT NULL AND NOT ({UNANSWERED})");
            db.execute(&answered, &[&now, &lease])?;
            let asked = format!(
                "UPDATE jobs j SET due = $1 + $3::bigint, due_round = round
                    WHERE j.state < 3 AND (due IS NULL OR due_round <> round) AND {UNANSWERED}"
            );
            db.execute(&asked, &[&now, &lease, &(limit as i64)])?;
            let sql = format!(
                "SELECT id, round FROM jobs j WHERE j.state < 3 AND due <= $1 AND {UNANSWERED} ORDER BY number"
            );
            let mut overdue = Vec::new();
            for row in db.all(&sql, &[&now, &lease])? {
                match parse_waiting(&row) {
                    Ok(found) => overdue.push(found),
                    // An unreadable job does not block the others.
                    Err(error) => tracing::error!(%error, "cannot read a job that waits for a verdict"),
                }
            }
            Ok(overdue)
        })
    }
}

/// Moves all deadlines by a time in which no server looked at them: owners could not answer. Also
/// by a jump of the clock.
fn forgive_gap(db: &Db<'_>, now: i64, pause: Millis) -> Result<()> {
    let last = db.optional("SELECT acted FROM duties WHERE name = 'verdicts'", &[])?;
    let last: Option<i64> = last.map(|row| row.try_get(0)).transpose()?;
    let sql = "INSERT INTO duties (name, until, acted) VALUES ('verdicts', 0, $1)
        ON CONFLICT (name) DO UPDATE SET acted = EXCLUDED.acted";
    db.execute(sql, &[&now])?;
    let gap = now - last.unwrap_or(now);
    if (0..=3 * pause as i64).contains(&gap) {
        return Ok(());
    }
    db.execute("UPDATE jobs SET due = due + $1 WHERE due IS NOT NULL", &[&gap]).map(|_| ())
}
