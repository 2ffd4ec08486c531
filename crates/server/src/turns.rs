//! Something heavy that is done for one request at a time. Whoever waits holds no thread, and a tenant who asks for much waits for
//! himself: of each, one request at most stands in the common line.

use crate::tenants::Tenant;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The lines.
pub struct Turns {
    own: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
    common: Arc<Semaphore>,
}

/// A turn, which ends when this is dropped.
pub struct Turn {
    _common: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { own: Mutex::default(), common: Arc::new(Semaphore::new(1)) }
    }
}

impl Turns {
    /// Waits for a tenant's turn.
    pub async fn wait(&self, tenant: &Tenant) -> Turn {
        let own = {
            let mut lines = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lines.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // Neither line is ever closed.
        let own = own.acquire_owned().await.ok();
        let common = Arc::clone(&self.common).acquire_owned().await.ok();
        Turn { _common: common, _own: own }
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
}
