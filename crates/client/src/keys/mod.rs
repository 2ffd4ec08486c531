//! The keys of a project.
//!
//! The secret key is created once and never replaced silently. A server gets key sets: all
//! switching keys that one circuit needs.
//!
//! ```text
//! secret    load, create, retire, rotate, back up, restore
//! owner     encryption, decryption and key generation with the secret key
//! key_sets  the files that a server gets, one for each layout
//! ```

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
