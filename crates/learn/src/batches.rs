//! Where a training's batches come from. The row-shifted versions of a batch are sixteen times what the client sent (for ten
//! classes): where they do not all fit, some are made again each time their batch's turn comes.

use crate::trainer::{Batch, Trainer};
use crate::{Error, Result};
use hetal_circuits::Engine;
use std::borrow::Cow;

/// A batch as it was sent.
#[derive(Clone, Debug)]
pub struct Upload<C> {
    /// Its blocks of features.
    pub features: Vec<C>,
    /// The labels.
    pub labels: C,
    /// Rows that are not padding.
    pub rows: usize,
}

/// A batch on the server.
#[derive(Clone, Debug)]
pub enum Held<C> {
    /// With its versions, which stay.
    Ready(Batch<C>),
    /// Without: they are made for each step and then forgotten.
    AsSent(Upload<C>),
}

impl<C: Clone + Send + Sync> Held<C> {
    /// The batch with its versions.
    pub fn ready<E: Engine<Ciphertext = C>>(&self, engine: &E, trainer: &Trainer<E>) -> Result<Cow<'_, Batch<C>>> {
        match self {
            Self::Ready(batch) => Ok(Cow::Borrowed(batch)),
            Self::AsSent(Upload { features, labels, rows }) => {
                Ok(Cow::Owned(trainer.batch(engine, features, labels.clone(), *rows)?))
            }
        }
    }
}

/// The batches of a training, by number.
pub trait Batches<E: Engine> {
    /// A batch with its versions, for the step that is next.
    fn batch(&self, engine: &E, trainer: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>>;
}

impl<E: Engine> Batches<E> for [Batch<E::Ciphertext>] {
    fn batch(&self, _: &E, _: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>> {
        self.get(number).map(Cow::Borrowed).ok_or_else(|| unknown(number))
    }
}

impl<E: Engine> Batches<E> for [Held<E::Ciphertext>] {
    fn batch(&self, engine: &E, trainer: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>> {
        self.get(number).ok_or_else(|| unknown(number))?.ready(engine, trainer)
    }
}

fn unknown(number: usize) -> Error {
    Error::Invalid { what: "batch", value: number as f64, must: "below the number of batches" }
}
