//! Connections before authentication.
//!
//! Their total number is limited. Above the limit, the oldest connection from the busiest address
//! is closed, so a flood from one address only evicts itself.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// All unauthenticated connections.
pub struct PreauthConnections {
    max_open: usize,
    open: Arc<Mutex<Open>>,
}

/// An open connection. Dropping the sender evicts it.
struct OpenConnection {
    address: IpAddr,
    _evict: oneshot::Sender<()>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// Open connections in order of arrival.
    by_age: BTreeMap<u64, OpenConnection>,
}

impl Open {
    /// The oldest connection from the busiest address.
    fn eviction_candidate(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.by_age.values().for_each(|open| *counts.entry(open.address).or_default() += 1);
        let highest = counts.values().copied().max()?;
        self.by_age.iter().find(|(_, open)| counts[&open.address] == highest).map(|(&number, _)| number)
    }
}

/// One unauthenticated connection, until this is dropped.
pub struct PreauthConnection {
    number: u64,
    open: Arc<Mutex<Open>>,
}

impl PreauthConnections {
    /// Allows `max_open` connections.
    pub fn new(max_open: usize) -> Self {
        Self { max_open, open: Arc::default() }
    }

    /// Registers a connection. The receiver completes when the connection is evicted.
    pub fn register(&self, address: IpAddr) -> (PreauthConnection, oneshot::Receiver<()>) {
        let (sender, evicted) = oneshot::channel();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.by_age.len() >= self.max_open
            && let Some(number) = open.eviction_candidate()
        {
            open.by_age.remove(&number);
        }
        let number = open.next;
        open.next += 1;
        open.by_age.insert(number, OpenConnection { address, _evict: sender });
        (PreauthConnection { number, open: Arc::clone(&self.open) }, evicted)
    }
}

impl Drop for PreauthConnection {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).by_age.remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn the_oldest_goes() {
        let connections = PreauthConnections::new(2);
        let [(first, mut of_first), (second, mut of_second), (_third, mut of_third)] =
            [0; 3].map(|_| connections.register(HERE));
        let stays = |evicted: &mut oneshot::Receiver<()>| evicted.try_recv() == Err(TryRecvError::Empty);
        assert!(!stays(&mut of_first) && stays(&mut of_second) && stays(&mut of_third));
        // A connection that authenticates or closes makes room. An evicted one has already made it.
        drop(first);
        drop(second);
        let _fourth = connections.register(HERE);
        assert!(stays(&mut of_third));
        assert_eq!(connections.open.lock().unwrap().by_age.len(), 2);
    }

    #[test]
    fn many_from_one_place_push_out_each_other() {
        let connections = PreauthConnections::new(4);
        let (_elsewhere, mut of_elsewhere) = connections.register(IpAddr::from([192, 0, 2, 7]));
        let flood: Vec<_> = (0..1000).map(|_| connections.register(HERE)).collect();
        assert_eq!(of_elsewhere.try_recv(), Err(TryRecvError::Empty), "the oldest of all stays");
        assert_eq!(connections.open.lock().unwrap().by_age.len(), 4);
        drop(flood);
        assert_eq!(connections.open.lock().unwrap().by_age.len(), 1);
    }
}
