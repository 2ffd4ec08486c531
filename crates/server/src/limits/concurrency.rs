//! Counting limits: at most so many of something at the same time for each key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// A limit for each key.
pub struct ConcurrencyLimit<K> {
    max_per_key: usize,
    counts: Counts<K>,
}

/// A permit, returned when this is dropped.
pub struct Permit<K: Eq + Hash> {
    key: K,
    counts: Counts<K>,
}

impl<K: Eq + Hash + Clone> ConcurrencyLimit<K> {
    /// Allows `max_per_key` permits for each key.
    pub fn new(max_per_key: usize) -> Self {
        Self { max_per_key, counts: Counts::default() }
    }

    /// Takes a permit if one is free.
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
            // Keys without permits are removed, so that the table does not grow.
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
