//! Something heavy that is done for one request at a time. Whoever waits holds no thread, and a tenant who asks for much waits for
//! himself: of each, one request at most stands in the common line.

use crate::tenants::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// Places of each tenant, for which only his own requests wait.
pub struct TenantSemaphores {
    permits: usize,
    by_tenant: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

impl TenantSemaphores {
    /// So many places for each tenant.
    pub fn new(permits: usize) -> Self {
        Self { permits, by_tenant: Mutex::default() }
    }

    /// A place of a tenant, when one is free.
    pub async fn acquire(&self, tenant: &Tenant) -> Option<OwnedSemaphorePermit> {
        let own = {
            let mut by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_tenant.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.permits))))
        };
        // It is never closed.
        own.acquire_owned().await.ok()
    }

    /// Waits for a place and works, away from the network's threads. The place goes with the work: a request whose stream is reset does
    /// not end what was begun for it, and must not make room for more.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let permit = self.acquire(tenant).await;
        let work = move || {
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await
    }
}

/// The lines.
pub struct AdmissionQueue {
    per_tenant: TenantSemaphores,
    shared: Arc<Semaphore>,
}

/// A turn, which ends when this is dropped.
pub struct Admission {
    shared: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
}

impl Admission {
    /// Lets others have theirs, when what remains costs only the tenant's own time: his next request still waits for it.
    pub fn release_shared(&mut self) {
        self.shared = None;
    }
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self { per_tenant: TenantSemaphores::new(1), shared: Arc::new(Semaphore::new(1)) }
    }
}

impl AdmissionQueue {
    /// Waits for a tenant's turn and works, away from the network's threads, until the work ends it. The turn goes with the work: a
    /// request whose stream is reset does not end what was begun for it, and the next one must not begin beside it.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(Admission) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let admission = self.acquire(tenant).await;
        tokio::task::spawn_blocking(move || work(admission)).await
    }

    async fn acquire(&self, tenant: &Tenant) -> Admission {
        let own = self.per_tenant.acquire(tenant).await;
        // It is never closed.
        let shared = Arc::clone(&self.shared).acquire_owned().await.ok();
        Admission { shared, _own: own }
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
        let (queue, served) = (Arc::new(AdmissionQueue::default()), Arc::new(Mutex::new(Vec::new())));
        runtime.block_on(async {
            let first = queue.acquire(&ann).await;
            let all = [&ann, &ann, &ann, &bob].map(|tenant| {
                let (queue, served, tenant) = (Arc::clone(&queue), Arc::clone(&served), tenant.clone());
                tokio::spawn(async move {
                    let _admission = queue.acquire(&tenant).await;
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
        let slots = Arc::new(TenantSemaphores::new(2));
        let (begun, begins) = std::sync::mpsc::channel();
        let ends = Arc::new(Mutex::new(()));
        let held = ends.lock().unwrap();
        runtime.block_on(async {
            let all = [0; 5].map(|_| {
                let (slots, ann, begun, ends) = (Arc::clone(&slots), ann.clone(), begun.clone(), Arc::clone(&ends));
                let work = move || {
                    begun.send(()).unwrap();
                    drop(ends.lock());
                };
                tokio::spawn(async move { slots.run_blocking(&ann, work).await })
            });
            let mut count = 0;
            while count < 2 {
                count += begins.try_iter().count();
                tokio::task::yield_now().await;
            }
            all[0].abort();
            all[1].abort();
            slots.run_blocking(&bob, || ()).await.unwrap();
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
        let queue = Arc::new(AdmissionQueue::default());
        runtime.block_on(async {
            let mut first = queue.acquire(&ann).await;
            first.release_shared();
            drop(queue.acquire(&bob).await);
            let second = tokio::spawn({
                let (queue, ann) = (Arc::clone(&queue), ann.clone());
                async move { drop(queue.acquire(&ann).await) }
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
        let queue = Arc::new(AdmissionQueue::default());
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let request = tokio::spawn({
                let queue = Arc::clone(&queue);
                async move {
                    let work = move |_admission| {
                        begun.send(()).unwrap();
                        let _ = ends.recv();
                    };
                    queue.run_blocking(&ann, work).await
                }
            });
            while begins.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            // Its client resets the stream; the work goes on.
            request.abort();
            assert!(request.await.is_err_and(|e| e.is_cancelled()));
            assert_eq!(queue.shared.available_permits(), 0, "a second one may begin beside it");
            drop(end);
            drop(queue.acquire(&bob).await);
        });
        assert_eq!(queue.shared.available_permits(), 1);
    }
}
