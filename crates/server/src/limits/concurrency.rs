//! Limits on how many of something anyone has at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

type Taken<K> = Arc<Mutex<HashMap<K, usize>>>;

/// Places, so many for each key.
pub struct Places<K> {
    most: usize,
    taken: Taken<K>,
}

/// A place that is taken until this is dropped.
pub struct Place<K: Eq + Hash> {
    key: K,
    taken: Taken<K>,
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// `most` places for each key.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Taken::default() }
    }

    /// A place, if one is free.
    pub fn take(&self, key: &K) -> Option<Place<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(key.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { key: key.clone(), taken: Arc::clone(&self.taken) })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            // Whoever has nothing is forgotten: the table is no larger than what is held.
            if *count == 0 {
                taken.remove(&self.key);
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
        let places = Places::new(2);
        let (first, second) = (places.take(&"ann").unwrap(), places.take(&"ann").unwrap());
        assert!(places.take(&"ann").is_none());
        let other = places.take(&"bob").unwrap();
        drop(first);
        let third = places.take(&"ann").unwrap();
        assert!(places.take(&"ann").is_none());
        drop((second, third, other));
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
