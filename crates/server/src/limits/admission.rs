//! Serialises expensive requests. Waiting requests hold no thread. Each tenant has at most one
//! request in the shared queue, so a tenant with many requests delays only himself.

use super::caller::on_behalf_of;
use crate::tenants::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// A semaphore for each tenant. Tenants do not wait for each other.
pub struct TenantSemaphores {
    permits: usize,
    by_tenant: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

impl TenantSemaphores {
    /// Creates semaphores with `permits` permits for each tenant.
    pub fn new(permits: usize) -> Self {
        Self { permits, by_tenant: Mutex::default() }
    }

    /// Waits for a permit of a tenant.
    pub async fn acquire(&self, tenant: &Tenant) -> Option<OwnedSemaphorePermit> {
        let own = {
            let mut by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_tenant.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.permits))))
        };
        // The semaphore is never closed.
        own.acquire_owned().await.ok()
    }

    /// Waits for a permit and runs blocking work outside the network threads. The work owns the
    /// permit: resetting the stream does not cancel the work, so it must not free the permit
    /// either.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let (permit, owner) = (self.acquire(tenant).await, tenant.clone());
        let work = move || {
            let _permit = permit;
            on_behalf_of(&owner, work)
        };
        tokio::task::spawn_blocking(work).await
    }
}

/// A queue that admits one request at a time.
pub struct AdmissionQueue {
    per_tenant: TenantSemaphores,
    shared: Arc<Semaphore>,
}

/// Admission to the queue, until this is dropped.
pub struct Admission {
    shared: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
}

impl Admission {
    /// Admits requests of other tenants while the rest of the work runs. The next request of the
    /// same tenant still waits.
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
    /// Waits for admission and runs blocking work outside the network threads. The work owns the
    /// admission: resetting the stream does not cancel the work, so the next request must still
    /// wait.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(Admission) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let (admission, owner) = (self.acquire(tenant).await, tenant.clone());
        tokio::task::spawn_blocking(move || on_behalf_of(&owner, || work(admission))).await
    }

    async fn acquire(&self, tenant: &Tenant) -> Admission {
        let own = self.per_tenant.acquire(tenant).await;
        // The semaphore is never closed.
        let shared = Arc::clone(&self.shared).acquire_owned().await.ok();
        Admission { shared, _own: own }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::caller;

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

    /// A tenant gets a fixed number of permits, even if he resets streams. Other tenants do not
    /// wait.
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

    /// Whoever does the work knows for whom.
    #[test]
    fn work_of_a_request_is_on_behalf_of_its_tenant() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ann = Tenant::try_from("ann".to_owned()).unwrap();
        let (slots, queue) = (TenantSemaphores::new(1), AdmissionQueue::default());
        let found = runtime.block_on(async {
            let own = tokio::task::spawn_blocking(caller::tenant).await.unwrap();
            let request = slots.run_blocking(&ann, caller::tenant).await.unwrap();
            (own, request, queue.run_blocking(&ann, |_| caller::tenant()).await.unwrap())
        });
        assert_eq!(found, (None, Some(ann.clone()), Some(ann)));
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
            // The client resets the stream; the work continues.
            request.abort();
            assert!(request.await.is_err_and(|e| e.is_cancelled()));
            assert_eq!(queue.shared.available_permits(), 0, "a second one may begin beside it");
            drop(end);
            drop(queue.acquire(&bob).await);
        });
        assert_eq!(queue.shared.available_permits(), 1);
    }
}
