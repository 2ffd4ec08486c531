//! For which tenant a thread works. Limits of what the requests of one tenant may hold need it far
//! from where the request came in.

use crate::tenants::Tenant;
use std::cell::RefCell;

thread_local! {
    static CALLER: RefCell<Option<Tenant>> = const { RefCell::new(None) };
}

/// Restores the caller of before, also after a panic: threads are used again.
struct Restore(Option<Tenant>);

impl Drop for Restore {
    fn drop(&mut self) {
        CALLER.set(self.0.take());
    }
}

/// Runs the work of a tenant's request on this thread.
pub fn on_behalf_of<T>(tenant: &Tenant, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(CALLER.replace(Some(tenant.clone())));
    work()
}

/// The tenant whose request this thread serves; `None` if it does the server's own work.
pub fn tenant() -> Option<Tenant> {
    CALLER.with_borrow(Clone::clone)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_panics_leaves_its_thread_to_others() {
        let [ann, bob] = ["ann", "bob"].map(|name| Tenant::try_from(name.to_owned()).unwrap());
        let panicked = std::panic::catch_unwind(|| {
            on_behalf_of(&ann, || {
                assert_eq!((on_behalf_of(&bob, tenant), tenant()), (Some(bob.clone()), Some(ann.clone())));
                panic!("a request");
            })
        });
        assert!(panicked.is_err() && tenant().is_none());
    }
}
