//! Connections on which nobody has shown credentials. There are so many of them at most, wherever they come from: who comes when all
//! places are taken has that of the oldest from where most come from. So many from one address push out each other.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// All strangers.
pub struct Strangers {
    most: usize,
    there: Arc<Mutex<There>>,
}

#[derive(Default)]
struct There {
    next: u64,
    /// By their age, with where they come from; whoever is dropped from it is told.
    all: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

impl There {
    /// The oldest of those from where most come from.
    fn most_dispensable(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.all.values().for_each(|(from, _)| *counts.entry(*from).or_default() += 1);
        let most = counts.values().copied().max()?;
        self.all.iter().find(|(_, (from, _))| counts[from] == most).map(|(&number, _)| number)
    }
}

/// One of them, until this is dropped.
pub struct Stranger {
    number: u64,
    there: Arc<Mutex<There>>,
}

impl Strangers {
    /// So many of them.
    pub fn new(most: usize) -> Self {
        Self { most, there: Arc::default() }
    }

    /// One more from a neighbourhood, and what tells it that it has to go.
    pub fn enter(&self, from: IpAddr) -> (Stranger, oneshot::Receiver<()>) {
        let (sender, told) = oneshot::channel();
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        if there.all.len() >= self.most
            && let Some(number) = there.most_dispensable()
        {
            there.all.remove(&number);
        }
        let number = there.next;
        there.next += 1;
        there.all.insert(number, (from, sender));
        (Stranger { number, there: Arc::clone(&self.there) }, told)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.there.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&self.number);
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
        let strangers = Strangers::new(2);
        let [(first, mut of_first), (second, mut of_second), (_third, mut of_third)] =
            [0; 3].map(|_| strangers.enter(HERE));
        let stays = |told: &mut oneshot::Receiver<()>| told.try_recv() == Err(TryRecvError::Empty);
        assert!(!stays(&mut of_first) && stays(&mut of_second) && stays(&mut of_third));
        // One that is known, or gone, makes room; one that had to go has none to give.
        drop(first);
        drop(second);
        let _fourth = strangers.enter(HERE);
        assert!(stays(&mut of_third));
        assert_eq!(strangers.there.lock().unwrap().all.len(), 2);
    }

    #[test]
    fn many_from_one_place_push_out_each_other() {
        let strangers = Strangers::new(4);
        let (_elsewhere, mut of_elsewhere) = strangers.enter(IpAddr::from([192, 0, 2, 7]));
        let flood: Vec<_> = (0..1000).map(|_| strangers.enter(HERE)).collect();
        assert_eq!(of_elsewhere.try_recv(), Err(TryRecvError::Empty), "the oldest of all stays");
        assert_eq!(strangers.there.lock().unwrap().all.len(), 4);
        drop(flood);
        assert_eq!(strangers.there.lock().unwrap().all.len(), 1);
    }
}
