//! Connections to PostgreSQL, and the bridge from the synchronous [`State`](super::State) to an
//! asynchronous driver.
//!
//! Requests and workers call the state from threads that may block. Each call takes a connection
//! from a small pool and waits for each statement in turn. The driver's tasks run on a thread of
//! their own, which also notices a connection that ends while nobody uses it.
//!
//! A tenant who makes many requests at once waits for himself: his requests hold a few connections,
//! and those of all tenants leave some to the server's own work, such as claims and renewals.

use super::settings::PgSettings;
use crate::limits::caller;
use crate::store::state::Woken;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_wire::JobId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, Statement};

/// The most connections of a process.
const CONNECTIONS: usize = 8;
/// The most connections that requests of all tenants hold at once. The others are for the server's
/// own work.
const OF_TENANTS: usize = 6;
/// The most connections that requests of one tenant hold at once.
pub(super) const OF_ONE_TENANT: usize = 3;
/// How long a call waits for a connection that another one uses.
const POOL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a statement may take, the wait for the network included. The server ends it earlier.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts at a transaction that lost its connection, or a conflict, before it was committed.
const ATTEMPTS: usize = 3;

/// The pause before a lost connection for notifications is replaced.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// The settings of each connection. A process that is suspended in the middle of a transaction
/// holds its locks for ten seconds at most.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '10s';
    SET statement_timeout = '20s'; SET default_transaction_isolation = 'read committed';
    SET client_min_messages = 'warning'";

pub type SqlValues<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The message of a failure. It names neither values nor credentials: PostgreSQL puts values into
/// the details of a message, which are left out.
pub fn fault(error: &tokio_postgres::Error) -> Error {
    use std::error::Error as _;
    let reason = match (error.as_db_error(), error.source()) {
        (Some(answer), _) => format!("PostgreSQL: {} (SQLSTATE {})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("PostgreSQL: {error}: {source}"),
        (None, None) => format!("PostgreSQL: {error}"),
    };
    Error::State { reason }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        fault(&error)
    }
}

/// How a transaction sees the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Each statement sees what was committed before it.
    Write,
    /// All statements see the same.
    Snapshot,
}

/// The connections of a process.
pub struct ConnectionPool {
    settings: PgSettings,
    /// Present until this is dropped.
    runtime: Option<Runtime>,
    /// By which this process knows its own notifications.
    sender: String,
    state: Mutex<PoolState>,
    returned: Condvar,
    /// Statements so far.
    #[cfg(test)]
    pub(super) round_trips: std::sync::atomic::AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    free: Vec<Connection>,
    /// Connections that exist, the free ones included.
    open: usize,
    /// How many of them requests of each tenant hold.
    of_tenants: HashMap<Tenant, usize>,
    /// Calls that wait for one.
    waiting: usize,
}

impl PoolState {
    /// Whether a request of a tenant, or else the server, may take a connection.
    fn has_place(&self, tenant: Option<&Tenant>) -> bool {
        let is_allowed = |tenant| {
            let own = self.of_tenants.get(tenant).copied().unwrap_or(0);
            own < OF_ONE_TENANT && self.of_tenants.values().sum::<usize>() < OF_TENANTS
        };
        (!self.free.is_empty() || self.open < CONNECTIONS) && tenant.is_none_or(is_allowed)
    }

    /// Takes a connection that was not lost meanwhile, or the place for a new one.
    fn take(&mut self, tenant: Option<&Tenant>) -> Option<Connection> {
        if let Some(tenant) = tenant {
            *self.of_tenants.entry(tenant.clone()).or_default() += 1;
        }
        while let Some(connection) = self.free.pop() {
            if !connection.client.is_closed() {
                return Some(connection);
            }
            self.open -= 1;
        }
        self.open += 1;
        None
    }

    /// Takes back the place of a connection, and the connection if it can be used again.
    fn put(&mut self, tenant: Option<&Tenant>, connection: Option<Connection>) {
        if let Some(held) = tenant.and_then(|tenant| self.of_tenants.get_mut(tenant)) {
            *held -= 1;
        }
        self.of_tenants.retain(|_, held| *held > 0);
        match connection {
            Some(connection) => self.free.push(connection),
            None => self.open -= 1,
        }
    }
}

/// A place in the pool that a call holds. It is free again when this is dropped, also by a panic.
struct Held<'a> {
    pool: &'a ConnectionPool,
    tenant: Option<Tenant>,
    /// Present unless connecting failed.
    connection: Option<Connection>,
    /// Whether the next call can use the connection.
    is_usable: bool,
}

impl Held<'_> {
    fn connection(&self) -> Result<&Connection> {
        self.connection.as_ref().ok_or_else(|| Error::State { reason: "PostgreSQL: not connected".to_owned() })
    }

    /// Ends the use of the connection.
    fn give_back(mut self, is_lost: bool) {
        if is_lost {
            // The others most likely ended with it.
            let mut pool = self.pool.state();
            pool.open -= pool.free.len();
            pool.free.clear();
        }
        self.is_usable = !is_lost;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let connection = self.connection.take().filter(|_| self.is_usable);
        self.pool.state().put(self.tenant.as_ref(), connection);
        // Several places may be free now, and not everybody may take them.
        self.pool.returned.notify_all();
    }
}

struct Connection {
    client: Client,
    statements: RefCell<HashMap<String, Statement>>,
}

impl ConnectionPool {
    /// Prepares a pool. The first use connects.
    pub fn new(settings: PgSettings) -> Result<Self> {
        let failed = |e: std::io::Error| Error::System { what: "a thread".to_owned(), reason: e.to_string() };
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("postgres").enable_all().build().map_err(failed)?;
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|e| Error::System { what: "randomness".to_owned(), reason: e.to_string() })?;
        let sender = u64::from_le_bytes(bytes).to_string();
        Ok(Self {
            settings,
            runtime: Some(runtime),
            sender,
            state: Mutex::default(),
            returned: Condvar::new(),
            #[cfg(test)]
            round_trips: Default::default(),
        })
    }

    /// Runs a transaction. Until it is committed it can be repeated, so `work` may be called
    /// several times. If the connection is lost during the commit, nobody knows whether it was
    /// applied: the caller gets a fault.
    pub fn transaction<T>(&self, access: Access, work: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        let begin = match access {
            Access::Write => "BEGIN",
            Access::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        self.attempt(|db| {
            db.batch(begin)?;
            let value = work(db)?;
            if db.failed.get() {
                return Err(Error::State { reason: "PostgreSQL: a statement failed".to_owned() });
            }
            db.repeatable.set(false);
            db.batch("COMMIT")?;
            Ok(value)
        })
    }

    /// Runs a transaction that is not repeated.
    pub fn once<T>(&self, work: impl FnOnce(&Db<'_>) -> Result<T>) -> Result<T> {
        let work = RefCell::new(Some(work));
        let again = || Error::State { reason: "PostgreSQL: the connection was lost".to_owned() };
        self.transaction(Access::Write, |db| work.take().ok_or_else(again)?(db))
    }

    /// The name of the database, for messages.
    pub fn location(&self) -> String {
        self.settings.location()
    }

    /// Runs statements that each are a transaction. They are repeated if the connection is lost, so
    /// they must give the same when they are.
    pub fn statements<T>(&self, work: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        self.attempt(work)
    }

    /// Runs a statement that may take any time, and in no transaction.
    pub fn maintain(&self, sql: &str) -> Result<()> {
        let held = self.take()?;
        let db = Db::new(self, held.connection()?);
        let statements = ["SET statement_timeout = 0; SET lock_timeout = 0", sql, SESSION];
        let done = statements.iter().try_for_each(|sql| db.wait(None, db.connection.client.batch_execute(sql)));
        let is_lost = db.is_lost.get() || done.is_err();
        held.give_back(is_lost);
        done
    }

    fn attempt<T>(&self, work: impl Fn(&Db<'_>) -> Result<T>) -> Result<T> {
        for attempt in 1.. {
            let held = self.take()?;
            let db = Db::new(self, held.connection()?);
            let done = work(&db);
            if done.is_err() && !db.is_lost.get() {
                // Outside a transaction this has no effect.
                let _ = db.batch("ROLLBACK");
            }
            let (is_lost, is_conflict, repeatable) = (db.is_lost.get(), db.is_conflict.get(), db.repeatable.get());
            held.give_back(is_lost);
            if done.is_ok() || attempt == ATTEMPTS || !repeatable || !(is_lost || is_conflict) {
                return done;
            }
        }
        unreachable!("the last attempt returns")
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Result<Held<'_>> {
        let tenant = caller::tenant();
        let mut pool = self.state();
        pool.waiting += 1;
        let none_left = |pool: &mut PoolState| !pool.has_place(tenant.as_ref());
        let waited = self.returned.wait_timeout_while(pool, POOL_TIMEOUT, none_left);
        let (mut pool, _) = waited.unwrap_or_else(PoisonError::into_inner);
        pool.waiting -= 1;
        if !pool.has_place(tenant.as_ref()) {
            let whose = if tenant.is_some() { "for requests" } else { "of this server" };
            let reason = format!("all connections to PostgreSQL {whose} are in use");
            return Err(Error::State { reason });
        }
        let connection = pool.take(tenant.as_ref());
        drop(pool);
        let mut held = Held { pool: self, tenant, connection, is_usable: false };
        if held.connection.is_none() {
            held.connection = Some(self.connect()?);
        }
        Ok(held)
    }

    /// How many calls wait for a connection.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// How many connections requests of a tenant hold.
    #[cfg(test)]
    pub(super) fn held_by(&self, tenant: &Tenant) -> usize {
        self.state().of_tenants.get(tenant).copied().unwrap_or(0)
    }

    fn connect(&self) -> Result<Connection> {
        let connecting = async {
            let client = match &self.settings.tls {
                None => {
                    let (client, driver) = self.settings.config.connect(NoTls).await?;
                    tokio::spawn(driver);
                    client
                }
                Some(tls) => {
                    let (client, driver) = self.settings.config.connect(tls.clone()).await?;
                    tokio::spawn(driver);
                    client
                }
            };
            client.batch_execute(SESSION).await?;
            Ok::<_, tokio_postgres::Error>(client)
        };
        let limited = async { tokio::time::timeout(STATEMENT_TIMEOUT, connecting).await };
        let client = self.runtime()?.block_on(limited).map_err(|_| too_slow())??;
        Ok(Connection { client, statements: RefCell::default() })
    }

    /// Calls `woken` after changes by other servers, with the job that changed. Notifications get
    /// lost with their connection, so it is also called after each loss, without a job, and callers
    /// look by themselves once in a while.
    pub fn listen(&self, woken: Woken) -> Result<()> {
        let (settings, own, woken) = (self.settings.clone(), self.sender.clone(), Arc::new(woken));
        self.runtime()?.spawn(async move {
            loop {
                let heard = Heard { own: own.clone(), woken: Arc::clone(&woken) };
                let lost = match &settings.tls {
                    None => listen_once(settings.config.connect(NoTls).await, heard).await,
                    Some(tls) => listen_once(settings.config.connect(tls.clone()).await, heard).await,
                };
                if let Err(error) = lost {
                    tracing::debug!(error = %fault(&error), "no notifications from the database");
                }
                woken(None);
                tokio::time::sleep(LISTEN_PAUSE).await;
            }
        });
        Ok(())
    }

    fn runtime(&self) -> Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| Error::State { reason: "PostgreSQL: closed".to_owned() })
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        // The last user may be a task of another runtime, which must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whom a notification wakes.
struct Heard {
    own: String,
    woken: Arc<Woken>,
}

/// What a notification says: the job that changed, unless its sender was this process. Servers of
/// the version before name no job.
fn changed_elsewhere(payload: &str, own: &str) -> Option<Option<JobId>> {
    let (sender, job) = payload.split_once(' ').map_or((payload, None), |(sender, job)| (sender, job.parse().ok()));
    (sender != own).then_some(job)
}

/// Listens until the connection ends.
async fn listen_once<S, T>(
    connected: std::result::Result<(Client, tokio_postgres::Connection<S, T>), tokio_postgres::Error>,
    heard: Heard,
) -> std::result::Result<(), tokio_postgres::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, mut driver) = connected?;
    let Heard { own, woken } = heard;
    let wake = Arc::clone(&woken);
    let hearing = tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|cx| driver.poll_message(cx)).await {
            match message {
                Ok(AsyncMessage::Notification(note)) => {
                    changed_elsewhere(note.payload(), &own).into_iter().for_each(&**wake);
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    client.batch_execute("LISTEN hetal").await?;
    // What changed before is not announced.
    woken(None);
    hearing.await.unwrap_or(Ok(()))
}

fn too_slow() -> Error {
    Error::State { reason: format!("PostgreSQL: no answer within {} seconds", STATEMENT_TIMEOUT.as_secs()) }
}

/// A connection in use: statements, one at a time.
pub struct Db<'a> {
    pool: &'a ConnectionPool,
    connection: &'a Connection,
    /// Whether the connection can no longer be used.
    is_lost: Cell<bool>,
    /// Whether another transaction was in the way.
    is_conflict: Cell<bool>,
    /// Whether a statement failed. PostgreSQL then answers a commit by a rollback, not by an error.
    failed: Cell<bool>,
    /// Whether nothing was committed yet.
    repeatable: Cell<bool>,
}

impl<'a> Db<'a> {
    fn new(pool: &'a ConnectionPool, connection: &'a Connection) -> Self {
        let [is_lost, is_conflict, failed] = [const { Cell::new(false) }; 3];
        Self { pool, connection, is_lost, is_conflict, failed, repeatable: Cell::new(true) }
    }

    /// Waits for an answer.
    fn wait<T>(
        &self,
        patience: Option<Duration>,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let limited = async {
            match patience {
                Some(patience) => tokio::time::timeout(patience, answer).await.ok(),
                None => Some(answer.await),
            }
        };
        #[cfg(test)]
        self.pool.round_trips.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match self.pool.runtime()?.block_on(limited) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => {
                self.note(&error);
                Err(fault(&error))
            }
            None => {
                self.is_lost.set(true);
                Err(too_slow())
            }
        }
    }

    fn note(&self, error: &tokio_postgres::Error) {
        self.failed.set(true);
        let code = error.code();
        let conflicts = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        self.is_conflict.set(code.is_some_and(|code| conflicts.contains(code)));
        // A server that stops or has become a standby is reached again through a new connection.
        let ended = [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ];
        if self.connection.client.is_closed() || code.is_none_or(|code| ended.contains(code)) {
            self.is_lost.set(true);
        }
    }

    /// Runs statements without values.
    pub fn batch(&self, sql: &str) -> Result<()> {
        self.wait(Some(STATEMENT_TIMEOUT), self.connection.client.batch_execute(sql))
    }

    fn statement(&self, sql: &str) -> Result<Statement> {
        if let Some(known) = self.connection.statements.borrow().get(sql) {
            return Ok(known.clone());
        }
        let prepared = self.wait(Some(STATEMENT_TIMEOUT), self.connection.client.prepare(sql))?;
        self.connection.statements.borrow_mut().insert(sql.to_owned(), prepared.clone());
        Ok(prepared)
    }

    /// The types of a statement's values.
    pub fn types(&self, sql: &str) -> Result<Vec<tokio_postgres::types::Type>> {
        Ok(self.statement(sql)?.params().to_vec())
    }

    /// Runs a statement and returns the number of changed rows.
    pub fn execute(&self, sql: &str, values: SqlValues<'_>) -> Result<u64> {
        let statement = self.statement(sql)?;
        self.wait(Some(STATEMENT_TIMEOUT), self.connection.client.execute(&statement, values))
    }

    /// All rows of a query.
    pub fn all(&self, sql: &str, values: SqlValues<'_>) -> Result<Vec<Row>> {
        let statement = self.statement(sql)?;
        self.wait(Some(STATEMENT_TIMEOUT), self.connection.client.query(&statement, values))
    }

    /// The only row of a query, if there is one.
    pub fn optional(&self, sql: &str, values: SqlValues<'_>) -> Result<Option<Row>> {
        let statement = self.statement(sql)?;
        self.wait(Some(STATEMENT_TIMEOUT), self.connection.client.query_opt(&statement, values))
    }

    /// The only row of a query.
    pub fn one(&self, sql: &str, values: SqlValues<'_>) -> Result<Row> {
        let missing = || Error::State { reason: "PostgreSQL: a query returned no row".to_owned() };
        self.optional(sql, values)?.ok_or_else(missing)
    }

    /// Tells the other servers of a changed job when the transaction is committed.
    pub fn announce(&self, job: JobId) -> Result<()> {
        let payload = format!("{} {job}", self.pool.sender);
        self.all("SELECT pg_notify('hetal', $1)", &[&payload]).map(|_| ())
    }

    /// A number of a query with one row.
    pub fn number(&self, sql: &str, values: SqlValues<'_>) -> Result<i64> {
        Ok(self.one(sql, values)?.try_get(0)?)
    }
}
