//! Connections on which nobody has shown credentials. There are so many of them at most, wherever they come from: who comes when all
//! places are taken has that of the oldest.

use std::collections::BTreeMap;
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
    /// By their age; whoever is dropped from it is told.
    all: BTreeMap<u64, oneshot::Sender<()>>,
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

    /// One more, and what tells it that it has to go.
    pub fn enter(&self) -> (Stranger, oneshot::Receiver<()>) {
        let (sender, told) = oneshot::channel();
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        if there.all.len() >= self.most {
            there.all.pop_first();
        }
        let number = there.next;
        there.next += 1;
        there.all.insert(number, sender);
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

    #[test]
    fn the_oldest_goes() {
        let strangers = Strangers::new(2);
        let [(first, mut of_first), (second, mut of_second), (_third, mut of_third)] =
            [0; 3].map(|_| strangers.enter());
        let stays = |told: &mut oneshot::Receiver<()>| told.try_recv() == Err(TryRecvError::Empty);
        assert!(!stays(&mut of_first) && stays(&mut of_second) && stays(&mut of_third));
        // One that is known, or gone, makes room; one that had to go has none to give.
        drop(first);
        drop(second);
        let _fourth = strangers.enter();
        assert!(stays(&mut of_third));
        assert_eq!(strangers.there.lock().unwrap().all.len(), 2);
    }
}
