//! A project's keys: the secret, which is made once and never silently again, and the key set that a server gets.

mod key_sets;
mod owner;
mod secret;

pub(crate) use key_sets::is_of_another_version;
pub use key_sets::{check_set, ensure_set};
pub use owner::{KeyMaker, Owner, ring_of, ring_with};
pub(crate) use owner::{hex, random_name};
pub(crate) use secret::require_no_rotation;
pub use secret::{are_used, back_up, existing_owner, owner, params, restore, retire, rotate};

#[cfg(test)]
mod tests;
