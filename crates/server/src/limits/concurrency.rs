//! Limits on how many of something anyone has at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// Places, so many for each key.
pub struct ConcurrencyLimit<K> {
    max_per_key: usize,
    counts: Counts<K>,
}

/// A place that is taken until this is dropped.
pub struct Permit<K: Eq + Hash> {
    key: K,
    counts: Counts<K>,
}

impl<K: Eq + Hash + Clone> ConcurrencyLimit<K> {
    /// `most` places for each key.
    pub fn new(max_per_key: usize) -> Self {
        Self { max_per_key, counts: Counts::default() }
    }

    /// A place, if one is free.
    pub fn try_acquire(&self, key: &K) -> Option<Permit<K>> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.max_per_key {
            return None;
        }
        *count += 1;
        Some(Permit { key: key.clone(), counts: Arc::clone(&self.counts) })
    }
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            // Whoever has nothing is forgotten: the table is no larger than what is held.
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_key_and_come_back() {
        let limit = ConcurrencyLimit::new(2);
        let (first, second) = (limit.try_acquire(&"ann").unwrap(), limit.try_acquire(&"ann").unwrap());
        assert!(limit.try_acquire(&"ann").is_none());
        let other = limit.try_acquire(&"bob").unwrap();
        drop(first);
        let third = limit.try_acquire(&"ann").unwrap();
        assert!(limit.try_acquire(&"ann").is_none());
        drop((second, third, other));
        assert!(limit.counts.lock().unwrap().is_empty());
    }
}
