//! Something heavy that is done for one request at a time. Whoever waits holds no thread, and a tenant who asks for much waits for
//! himself: of each, one request at most stands in the common line.

use crate::tenants::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// Places of each tenant, for which only his own requests wait.
pub struct Lines {
    most: usize,
    own: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

impl Lines {
    /// So many places for each tenant.
    pub fn new(most: usize) -> Self {
        Self { most, own: Mutex::default() }
    }

    /// A place of a tenant, when one is free.
    pub async fn wait(&self, tenant: &Tenant) -> Option<OwnedSemaphorePermit> {
        let own = {
            let mut lines = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lines.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.most))))
        };
        // It is never closed.
        own.acquire_owned().await.ok()
    }

    /// Waits for a place and works, away from the network's threads. The place goes with the work: a request whose stream is reset does
    /// not end what was begun for it, and must not make room for more.
    pub async fn work<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let place = self.wait(tenant).await;
        let work = move || {
            let _place = place;
            work()
        };
        tokio::task::spawn_blocking(work).await
    }
}

/// The lines.
pub struct Turns {
    own: Lines,
    common: Arc<Semaphore>,
}

/// A turn, which ends when this is dropped.
pub struct Turn {
    common: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Lets others have theirs, when what remains costs only the tenant's own time: his next request still waits for it.
    pub fn step_aside(&mut self) {
        self.common = None;
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { own: Lines::new(1), common: Arc::new(Semaphore::new(1)) }
    }
}

impl Turns {
    /// Waits for a tenant's turn and works, away from the network's threads, until the work ends it. The turn goes with the work: a
    /// request whose stream is reset does not end what was begun for it, and the next one must not begin beside it.
    pub async fn work<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(Turn) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turn = self.wait(tenant).await;
        tokio::task::spawn_blocking(move || work(turn)).await
    }

    async fn wait(&self, tenant: &Tenant) -> Turn {
        let own = self.own.wait(tenant).await;
        // It is never closed.
        let common = Arc::clone(&self.common).acquire_owned().await.ok();
        Turn { common, _own: own }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_much_waits_for_himself() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let (turns, served) = (Arc::new(Turns::default()), Arc::new(Mutex::new(Vec::new())));
        runtime.block_on(async {
            let first = turns.wait(&ann).await;
            let all = [&ann, &ann, &ann, &bob].map(|tenant| {
                let (turns, served, tenant) = (Arc::clone(&turns), Arc::clone(&served), tenant.clone());
                tokio::spawn(async move {
                    let _turn = turns.wait(&tenant).await;
                    served.lock().unwrap().push(tenant.to_string());
                })
            });
            tokio::task::yield_now().await;
            assert!(served.lock().unwrap().is_empty(), "one at a time");
            drop(first);
            for task in all {
                task.await.unwrap();
            }
        });
        assert_eq!(*served.lock().unwrap(), ["bob", "ann", "ann", "ann"]);
    }

    /// However many requests a tenant makes, and resets, so many of them are worked on; and another's are not kept waiting.
    #[test]
    fn a_tenant_has_so_many_places() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let lines = Arc::new(Lines::new(2));
        let (begun, begins) = std::sync::mpsc::channel();
        let ends = Arc::new(Mutex::new(()));
        let held = ends.lock().unwrap();
        runtime.block_on(async {
            let all = [0; 5].map(|_| {
                let (lines, ann, begun, ends) = (Arc::clone(&lines), ann.clone(), begun.clone(), Arc::clone(&ends));
                let work = move || {
                    begun.send(()).unwrap();
                    drop(ends.lock());
                };
                tokio::spawn(async move { lines.work(&ann, work).await })
            });
            let mut count = 0;
            while count < 2 {
                count += begins.try_iter().count();
                tokio::task::yield_now().await;
            }
            all[0].abort();
            all[1].abort();
            lines.work(&bob, || ()).await.unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(begins.try_iter().count(), 0, "a reset stream makes no room");
            drop(held);
            for task in all {
                let _ = task.await;
            }
            assert_eq!(begins.try_iter().count(), 3);
        });
    }

    #[test]
    fn who_steps_aside_keeps_only_himself_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let turns = Arc::new(Turns::default());
        runtime.block_on(async {
            let mut first = turns.wait(&ann).await;
            first.step_aside();
            drop(turns.wait(&bob).await);
            let second = tokio::spawn({
                let (turns, ann) = (Arc::clone(&turns), ann.clone());
                async move { drop(turns.wait(&ann).await) }
            });
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!second.is_finished());
            drop(first);
            second.await.unwrap();
        });
    }

    #[test]
    fn a_turn_outlives_the_request_it_was_given_to() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let turns = Arc::new(Turns::default());
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let request = tokio::spawn({
                let turns = Arc::clone(&turns);
                async move {
                    let work = move |_turn| {
                        begun.send(()).unwrap();
                        let _ = ends.recv();
                    };
                    turns.work(&ann, work).await
                }
            });
            while begins.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            // Its client resets the stream; the work goes on.
            request.abort();
            assert!(request.await.is_err_and(|e| e.is_cancelled()));
            assert_eq!(turns.common.available_permits(), 0, "a second one may begin beside it");
            drop(end);
            drop(turns.wait(&bob).await);
        });
        assert_eq!(turns.common.available_permits(), 1);
    }
}
