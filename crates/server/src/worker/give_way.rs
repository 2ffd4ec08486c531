//! Which of the jobs that wait for verdicts gives its worker up for a queued job.

use crate::Result;
use crate::store::state::shared::Duty;
use crate::store::state::{Database, Millis};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// How long a worker of another server may take to save its job and to look for the next one. If it
/// ends meanwhile, others give way after that.
const TERM: Millis = 10_000;

/// Lets one worker at a time give way, of all servers that share a database. The next one may only
/// do so after the first has looked for a job: one queued job then costs one waiting job its
/// worker, not all of them.
#[derive(Default)]
pub struct GiveWay {
    /// The worker of this process that gives way.
    giver: Mutex<Option<ThreadId>>,
    /// The shared database, and the name by which it knows this server.
    site: Option<(Arc<dyn Database>, String)>,
}

impl GiveWay {
    /// Agrees with the other servers that share the database, if several may.
    pub(crate) fn among(database: &Arc<dyn Database>, server: &str) -> Self {
        let site = database.is_shared().then(|| (Arc::clone(database), server.to_owned()));
        Self { giver: Mutex::default(), site }
    }

    /// Whether the worker of this thread may give way. If so, no other worker may until
    /// [`GiveWay::end`].
    pub fn begin(&self) -> Result<bool> {
        let me = thread::current().id();
        if *self.giver.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(me) != me {
            return Ok(false);
        }
        let Some((database, server)) = &self.site else { return Ok(true) };
        let taken = database.shared().map_or(Ok(true), |shared| shared.take_duty(Duty::GiveWay, server, TERM));
        if !matches!(taken, Ok(true)) {
            self.forget();
        }
        taken
    }

    /// The worker of this thread has looked for a job, or does not give way after all.
    pub fn end(&self) {
        if !self.forget() {
            return;
        }
        let Some((database, server)) = &self.site else { return };
        let ended = database.shared().map_or(Ok(()), |shared| shared.end_duty(Duty::GiveWay, server));
        if let Err(error) = ended {
            tracing::warn!(%error, "could not record that a job has given way: others wait for some seconds");
        }
    }

    /// Returns whether the worker of this thread was the one that gives way.
    fn forget(&self) -> bool {
        let mut giver = self.giver.lock().unwrap_or_else(PoisonError::into_inner);
        giver.take_if(|giver| *giver == thread::current().id()).is_some()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::state::{PgSettings, PgState};
    use hetal_testkit::postgres::Postgres;

    #[test]
    fn one_worker_at_a_time_gives_way() {
        let give_way = GiveWay::default();
        let elsewhere = |work: fn(&GiveWay) -> bool| thread::scope(|scope| scope.spawn(|| work(&give_way)).join());
        let begins = || elsewhere(|give_way| give_way.begin().unwrap()).unwrap();
        assert!(give_way.begin().unwrap() && give_way.begin().unwrap(), "a worker may ask twice");
        assert!(!begins());
        let ends = |give_way: &GiveWay| {
            give_way.end();
            true
        };
        elsewhere(ends).unwrap();
        assert!(!begins(), "only the worker that gives way ends that");
        give_way.end();
        assert!(begins());
    }

    /// One queued job makes one waiting job of a site give way, whatever process has it.
    #[test]
    fn one_worker_of_a_site_gives_way() {
        let Some(server) = Postgres::shared() else { return };
        let url = server.database();
        let [first, second] = ["first", "second"].map(|name| {
            let database: Arc<dyn Database> =
                Arc::new(PgState::open(PgSettings::new(&url, None, None).unwrap()).unwrap());
            GiveWay::among(&database, name)
        });
        assert!(first.begin().unwrap() && first.begin().unwrap(), "a worker may ask twice");
        assert!(!second.begin().unwrap());
        second.end();
        assert!(!second.begin().unwrap(), "only the server that gives way ends that");
        first.end();
        assert!(second.begin().unwrap() && !first.begin().unwrap());
        // The process ended meanwhile.
        server.query(&url, "UPDATE duties SET until = until - 10000 WHERE name = 'give way'");
        assert!(first.begin().unwrap());
    }
}
